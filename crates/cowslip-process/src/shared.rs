//! Shared memory without a name (`MAP_SHARED | MAP_ANONYMOUS`), as of Python's `mmap.mmap(-1, length)`.
//!
//! A child shares it: it would show the memory of later. Its content is copied at the instant instead, and the holder and
//! each copy have memory of their own in its place. Other processes that the program shares it with are not in a copy.

use cowslip_sys::procfs::{Mapping, mappings};
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{BorrowedFd, Result, memfile};
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_SHARED, PROT_READ, PROT_WRITE, SYS_mmap, SYS_mprotect};

use crate::branch::Caller;

/// The most bytes of a program: the copy takes milliseconds, while it stands still.
const MOST_BYTES: usize = 64 << 20;

/// A mapping, and its content at the instant.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    range: VirtRange,
    protection: u32,
    content: Vec<u8>,
}

/// Returns true for shared memory without a name.
pub(crate) fn is_unnamed(mapping: &Mapping<'_>) -> bool {
    !mapping.is_private && mapping.name == "/dev/zero (deleted)"
}

/// Returns true if all of it can be copied: it is not too large, and no part of it is mapped twice.
pub(crate) fn can_be_copied(maps: &str) -> bool {
    let all: Vec<_> = mappings(maps).filter(is_unnamed).collect();
    let file = |mapping: &Mapping<'_>| {
        let start = mapping.offset_bytes as usize;
        ((mapping.device, mapping.inode), VirtRange::new(start, mapping.range.len))
    };
    let are_one = |one: &Mapping<'_>, other: &Mapping<'_>| {
        let ((file_of_one, one), (file_of_other, other)) = (file(one), file(other));
        file_of_one == file_of_other && !one.intersect(other).is_empty()
    };
    let twice =
        all.iter().enumerate().any(|(i, one)| all[..i].iter().any(|other| are_one(one, other)));
    !twice && all.iter().map(|mapping| mapping.range.len).sum::<usize>() <= MOST_BYTES
}

/// Copies the memory of a program that is stopped.
pub(crate) fn read(memory: BorrowedFd<'_>, maps: &str) -> Result<Vec<SharedMemory>> {
    let read = |mapping: Mapping<'_>| {
        let mut content = vec![0; mapping.range.len];
        memfile::read_exact_at(memory, &mut content, mapping.range.start as u64)?;
        Ok(SharedMemory { range: mapping.range, protection: mapping.protection, content })
    };
    mappings(maps).filter(is_unnamed).map(read).collect()
}

/// Gives a task memory of its own in the place of each, with the content of the instant.
pub(crate) fn renew(
    task: &mut Caller<'_>,
    memory: BorrowedFd<'_>,
    all: &[SharedMemory],
) -> Result<()> {
    let flags = (MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED) as u64;
    for SharedMemory { range, protection, content } in all {
        let (start, len) = (range.start as u64, range.len as u64);
        task.call(SYS_mmap, &[start, len, (PROT_READ | PROT_WRITE) as u64, flags, !0, 0])?;
        for (at, page) in (0_u64..).zip(content.chunks(page_size_bytes())) {
            if page.iter().any(|&byte| byte != 0) {
                memfile::write_at(memory, page, start + at * page_size_bytes() as u64)?;
            }
        }
        task.call(SYS_mprotect, &[start, len, u64::from(*protection)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_mapped_twice_or_is_too_large_is_not_copied() {
        let line = |range, offset, inode| {
            format!("{range} rw-s {offset:08x} 00:01 {inode} /dev/zero (deleted)\n")
        };
        let first = line("1000-3000", 0, 7);
        assert!(can_be_copied(&[&*first, &line("4000-5000", 0x2000, 7)].concat()));
        assert!(can_be_copied(&[&*first, &line("4000-5000", 0x1000, 8)].concat()));
        assert!(!can_be_copied(&[&*first, &line("4000-5000", 0x1000, 7)].concat()));
        assert!(!can_be_copied(&line("10000000-14001000", 0, 7)));
        assert!(can_be_copied("1000-f0000000 rw-s 00000000 00:01 7 /dev/shm/named\n"));
    }
}

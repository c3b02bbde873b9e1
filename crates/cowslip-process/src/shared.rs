//! Shared memory without a name: `MAP_SHARED | MAP_ANONYMOUS`, as of Python's `mmap.mmap(-1, length)`, and mapped files that
//! were deleted.
//!
//! A child shares it: it would show the memory of later. Its content is copied at the instant instead, and the holder and
//! each copy have memory of their own in its place. Other processes that the program shares it with are not in a copy.

use cowslip_sys::procfs::{Mapping, mappings};
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{BorrowedFd, Result, memfile};
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_SHARED, PROT_READ, PROT_WRITE, SYS_mmap, SYS_mprotect};

use crate::branch::Caller;
use crate::library::Own;

/// The most bytes of a program: the copy takes milliseconds, while it stands still.
const MOST_BYTES: usize = 64 << 20;

/// A mapping, and its content at the instant.
#[derive(Clone, Debug)]
pub(crate) struct SharedMemory {
    pub(crate) range: VirtRange,
    pub(crate) protection: u32,
    content: Vec<u8>,
}

/// The name of memory that never had a file.
pub(crate) const ANONYMOUS: &str = "/dev/zero (deleted)";

/// Returns true for shared memory that no other process can find by a name.
pub(crate) fn is_unnamed(mapping: &Mapping<'_>) -> bool {
    let is_written = mapping.protection & PROT_WRITE as u32 != 0;
    let is_deleted = mapping.name.ends_with(" (deleted)") && !mapping.name.starts_with("/SYSV");
    !mapping.is_private && (mapping.name == ANONYMOUS || is_written && is_deleted)
}

/// Returns true for memory of `memfd_secret(2)`.
pub(crate) fn is_secret(mapping: &Mapping<'_>) -> bool {
    !mapping.is_private && mapping.name.starts_with("/secretmem")
}

/// Returns true for the answers of a context of `io_setup(2)`.
pub(crate) fn is_ring(mapping: &Mapping<'_>) -> bool {
    !mapping.is_private && mapping.name.starts_with("/[aio]")
}

/// Shared memory that the program may write, but for the library's, [secrets](is_secret) and [rings](is_ring).
pub(crate) fn written<'a>(maps: &'a str, own: &'a Own) -> impl Iterator<Item = Mapping<'a>> {
    mappings(maps).filter(|mapping| {
        let is_memory =
            mapping.name.ends_with(" (deleted)") || mapping.name.starts_with("/dev/shm/");
        let is_written = mapping.protection & PROT_WRITE as u32 != 0;
        let is_other = own.has(mapping.range) || is_secret(mapping) || is_ring(mapping);
        !mapping.is_private && is_written && is_memory && !is_other
    })
}

/// Returns true if all of it can be copied: it is not too large, and no part of it is mapped twice.
pub(crate) fn can_be_copied(maps: &str, own: &Own) -> bool {
    let all: Vec<_> =
        mappings(maps).filter(|mapping| mapping.has_file && !own.has(mapping.range)).collect();
    let file = |mapping: &Mapping<'_>| {
        let start = mapping.offset_bytes as usize;
        ((mapping.device, mapping.inode), VirtRange::new(start, mapping.range.len))
    };
    let are_one = |one: &Mapping<'_>, other: &Mapping<'_>| {
        let ((file_of_one, one), (file_of_other, other)) = (file(one), file(other));
        file_of_one == file_of_other && !one.intersect(other).is_empty()
    };
    let mut unnamed = all.iter().filter(|mapping| is_unnamed(mapping));
    let is_small = unnamed.clone().map(|mapping| mapping.range.len).sum::<usize>() <= MOST_BYTES;
    is_small && unnamed.all(|one| all.iter().filter(|other| are_one(one, other)).count() == 1)
}

/// Returns true if a descriptor, by its link, refers to the file that a mapping is of.
pub(crate) fn has_descriptor(mapping: &Mapping<'_>, links: &[(i32, String)]) -> bool {
    mapping.name != ANONYMOUS && links.iter().any(|(_, link)| link == mapping.name)
}

/// Copies the memory of a program that is stopped.
pub(crate) fn read(memory: BorrowedFd<'_>, maps: &str, own: &Own) -> Result<Vec<SharedMemory>> {
    let read = |mapping: Mapping<'_>| {
        let mut content = vec![0; mapping.range.len];
        memfile::read_exact_at(memory, &mut content, mapping.range.start as u64)?;
        Ok(SharedMemory { range: mapping.range, protection: mapping.protection, content })
    };
    let is_copied = |mapping: &Mapping<'_>| is_unnamed(mapping) && !own.has(mapping.range);
    mappings(maps).filter(is_copied).map(read).collect()
}

/// Empties the shared memory that a holder has of its own.
pub(crate) fn empty(task: &mut Caller<'_>, memory: &SharedMemory) -> Result<()> {
    let (start, len) = (memory.range.start as u64, memory.range.len as u64);
    let flags = (MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED) as u64;
    task.call(SYS_mmap, &[start, len, u64::from(memory.protection), flags, !0, 0]).map(drop)
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
        let line = |range, how, offset, inode| {
            format!("{range} {how} {offset:08x} 00:01 {inode} /dev/zero (deleted)\n")
        };
        let can = |maps: &[&str]| can_be_copied(&maps.concat(), &Own::default());
        let first = &line("1000-3000", "rw-s", 0, 7);
        assert!(can(&[first, &line("4000-5000", "rw-s", 0x2000, 7)]));
        assert!(can(&[first, &line("4000-5000", "rw-s", 0x1000, 8)]));
        assert!(!can(&[first, &line("4000-5000", "rw-s", 0x1000, 7)]));
        assert!(!can(&[first, &line("4000-5000", "r--p", 0x1000, 7)]));
        assert!(!can(&[&line("10000000-14001000", "rw-s", 0, 7)]));
        assert!(can(&["1000-f0000000 rw-s 00000000 00:01 7 /dev/shm/named\n"]));
    }

    #[test]
    fn deleted_files_have_no_name() {
        let is_unnamed = |line| is_unnamed(&mappings(line).next().unwrap());
        assert!(is_unnamed("1000-3000 rw-s 00000000 08:01 7 /tmp/file (deleted)\n"));
        assert!(is_unnamed("1000-3000 r--s 00000000 00:01 7 /dev/zero (deleted)\n"));
        assert!(!is_unnamed("1000-3000 r--s 00000000 08:01 7 /tmp/file (deleted)\n"));
        assert!(!is_unnamed("1000-3000 rw-s 00000000 08:01 7 /tmp/file\n"));
        assert!(!is_unnamed("1000-3000 rw-p 00000000 08:01 7 /tmp/file (deleted)\n"));
        assert!(!is_unnamed("1000-3000 rw-s 00000000 00:01 7 /SYSV00000000 (deleted)\n"));
    }
}

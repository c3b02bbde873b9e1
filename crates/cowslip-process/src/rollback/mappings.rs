//! The calls that give a program the mappings of an instant.

use cowslip_sys::procfs::{Mapping, mappings};
use libc::{
    MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MAP_SHARED, PROT_WRITE, SYS_brk, SYS_mmap,
    SYS_mprotect, SYS_munmap, c_long,
};

use crate::kept::missing;
use crate::shared::is_unnamed;

const WRITE: u32 = PROT_WRITE as u32;

pub(super) type Calls = Vec<(c_long, [u64; 4])>;

/// Calls for mappings.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Changes {
    /// Map memory again that was unmapped since. It is empty, and no other memory changes.
    pub(super) again: Calls,
    /// Unmap memory that was mapped since, and set protections.
    pub(super) back: Calls,
}

/// The calls, by the texts of `maps` then and now; or why there are none that would do.
pub(super) fn changes(then: &str, now: &str) -> Result<Changes, String> {
    let stack = mappings(now).find(|mapping| mapping.name == "[stack]");
    let heap_end = heap(then).last().map(|last| last.range.end());
    let heap_end = heap_end.or_else(|| heap(now).next().map(|first| first.range.start));
    let again = unmapped_since(then, now)?;
    let mut calls = Vec::new();
    for range in missing(now, then) {
        let (start, len) = (range.start as u64, range.len as u64);
        if stack.as_ref().is_some_and(|stack| stack.range.contains(range.start)) {
            // It grows by itself.
            continue;
        }
        let is_heap = heap(now).any(|part| part.range.contains(range.start));
        match is_heap && heap_end == Some(range.start) {
            // All parts behind it go, too.
            true => calls.push((SYS_brk, [start, 0, 0, 0])),
            false => calls.push((SYS_munmap, [start, len, 0, 0])),
        }
    }
    let mut ours = mappings(now).peekable();
    for old in mappings(then) {
        while ours.peek().is_some_and(|new| new.range.end() <= old.range.start) {
            ours.next();
        }
        while let Some(new) = ours.peek().filter(|new| new.range.start < old.range.end()) {
            let start = new.range.start.max(old.range.start);
            let end = new.range.end().min(old.range.end());
            let place = |mapping: &Mapping<'_>| {
                let offset = mapping.offset_bytes.wrapping_sub(mapping.range.start as u64);
                let of_file = (mapping.device, mapping.inode, offset);
                // The holder's shared memory is its own.
                let is_of_file = mapping.inode != 0 && !is_unnamed(mapping);
                (mapping.is_private, is_of_file.then_some(of_file))
            };
            if place(new) != place(&old) {
                return Err(format!("other memory was mapped since at {start:#x}"));
            }
            if is_unnamed(&old) && old.protection & WRITE == 0 && new.protection & WRITE != 0 {
                return Err(format!("shared memory can be written since at {start:#x}"));
            }
            if new.protection != old.protection {
                let len = (end - start) as u64;
                calls.push((SYS_mprotect, [start as u64, len, old.protection.into(), 0]));
            }
            if new.range.end() > old.range.end() {
                break;
            }
            ours.next();
        }
    }
    Ok(Changes { again, back: calls })
}

/// The parts of the heap: several in a process that was forked, where the inherited part stays one, and where parts differ in
/// their rights or flags.
fn heap(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    mappings(maps).filter(|mapping| mapping.name == "[heap]")
}

/// The calls that map memory again. A file's mapping is not made again: the program may have closed the file.
fn unmapped_since(then: &str, now: &str) -> Result<Calls, String> {
    let gone = missing(then, now);
    let [end_then, end_now] =
        [then, now].map(|maps| heap(maps).last().map(|last| last.range.end()));
    let mut calls = Calls::new();
    for old in mappings(then) {
        let parts = gone.iter().filter(|gone| old.range.covers(**gone));
        for part in parts {
            let (start, len) = (part.start as u64, part.len as u64);
            let is_anonymous =
                old.inode == 0 && (old.name.is_empty() || old.name.starts_with("[anon"));
            let ends_heap =
                Some(part.end()) == end_then && end_now.is_none_or(|end| end <= part.start);
            let visibility = if old.is_private { MAP_PRIVATE } else { MAP_SHARED };
            let flags = (visibility | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE) as u64;
            match old.name {
                _ if ends_heap => calls.push((SYS_brk, [part.end() as u64, 0, 0, 0])),
                _ if is_anonymous || is_unnamed(&old) => {
                    calls.push((SYS_mmap, [start, len, old.protection.into(), flags]));
                }
                file => return Err(format!("memory was unmapped since: {part} of {file}")),
            }
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: &str = "1000-3000 rw-p 00000000 00:00 0 \n\
        5000-7000 rw-p 00000000 00:00 0 [heap]\n\
        8000-9000 r--p 00001000 08:01 77 /a\n\
        f000-11000 rw-p 00000000 00:00 0 [stack]\n";

    #[test]
    fn equal_mappings_need_no_call() {
        assert_eq!(changes(THEN, THEN), Ok(Changes::default()));
        let merged = THEN
            .replace("5000-7000 rw-p", "5000-6000 rw-p 00000000 00:00 0 [heap]\n6000-7000 rw-p");
        assert_eq!(changes(THEN, &merged), Ok(Changes::default()));
    }

    #[test]
    fn what_has_come_goes_and_rights_are_as_then() {
        let now = "1000-2000 rw-p 00000000 00:00 0 \n\
            2000-3000 ---p 00000000 00:00 0 \n\
            3000-4000 rw-p 00000000 00:00 0 \n\
            5000-7800 rw-p 00000000 00:00 0 [heap]\n\
            8000-9000 r--p 00001000 08:01 77 /a\n\
            e000-11000 rw-p 00000000 00:00 0 [stack]\n";
        let back = vec![
            (SYS_munmap, [0x3000, 0x1000, 0, 0]),
            (SYS_brk, [0x7000, 0, 0, 0]),
            (SYS_mprotect, [0x2000, 0x1000, 3, 0]),
        ];
        assert_eq!(changes(THEN, now), Ok(Changes { again: Vec::new(), back }));
    }

    #[test]
    fn the_heap_ends_where_it_did_then_in_any_number_of_parts() {
        let heap = "5000-7000 rw-p 00000000 00:00 0 [heap]\n";
        let more = heap.to_owned() + "7000-7800 rw-p 00000000 00:00 0 [heap]\n";
        let back = |then: &str, now: &str| changes(then, now).unwrap().back;
        assert_eq!(back(THEN, &THEN.replace(heap, &more)), [(SYS_brk, [0x7000, 0, 0, 0])]);
        let grown = more.clone() + "7800-7c00 rw-p 00000000 00:00 0 [heap]\n";
        let (then, now) = (THEN.replace(heap, &more), THEN.replace(heap, &grown));
        assert_eq!(back(&then, &now), [(SYS_brk, [0x7800, 0, 0, 0])]);
        assert_eq!(back(&THEN.replace(heap, ""), THEN), [(SYS_brk, [0x5000, 0, 0, 0])]);
    }

    #[test]
    fn shared_memory_that_could_not_be_written_must_not_be_by_now() {
        let then = "1000-2000 r--s 00000000 00:01 7 /dev/zero (deleted)\n";
        assert_eq!(changes(then, then), Ok(Changes::default()));
        assert!(
            changes(then, &then.replace("r--s", "rw-s")).unwrap_err().contains("written since")
        );
    }

    #[test]
    fn memory_without_a_file_is_mapped_again() {
        let now = "1000-2000 rw-p 00000000 00:00 0 \n\
            5000-6000 rw-p 00000000 00:00 0 [heap]\n\
            8000-9000 r--p 00001000 08:01 77 /a\n\
            f000-11000 rw-p 00000000 00:00 0 [stack]\n";
        let flags = (MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE) as u64;
        let again = vec![(SYS_mmap, [0x2000, 0x1000, 3, flags]), (SYS_brk, [0x7000, 0, 0, 0])];
        assert_eq!(changes(THEN, now), Ok(Changes { again, back: Vec::new() }));
    }

    #[test]
    fn what_is_gone_or_another_is_refused() {
        let gone = THEN.replace("8000-9000 r--p 00001000 08:01 77 /a\n", "");
        assert_eq!(
            changes(THEN, &gone).unwrap_err(),
            "memory was unmapped since: 0x8000..0x9000 (4 KiB) of /a"
        );
        let other = THEN.replace("08:01 77", "08:01 78");
        assert!(changes(THEN, &other).unwrap_err().contains("other memory"));
    }
}

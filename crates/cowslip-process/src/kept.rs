//! Memory that a program keeps from its children (`MADV_DONTFORK`), as V8 does. A holder has it all the same.

use cowslip_sys::procfs::mappings;
use cowslip_sys::units::VirtRange;

use crate::library::Own;

/// The flag of memory that the kernel may empty at any time.
const DROPPABLE: &str = "dp";

/// Finds memory that children have empty (`MADV_WIPEONFORK`), though its program counts on its content.
pub(crate) fn emptied(smaps: &str, own: &Own) -> Vec<VirtRange> {
    with_flag(smaps, "wf", own)
}

/// Finds it by the text of `/proc/PID/smaps`.
pub(crate) fn from_smaps(smaps: &str, own: &Own) -> Vec<VirtRange> {
    with_flag(smaps, "dc", own)
}

/// Finds memory that is kept out of core files (`MADV_DONTDUMP`). The kernel's own mappings are, too.
pub(crate) fn out_of_core_files(smaps: &str, own: &Own) -> Vec<VirtRange> {
    with_flag(smaps, "dd", own)
}

/// The mappings with a flag, but for those of devices and of the kernel, and memory that the kernel may empty at any time
/// (`MAP_DROPPABLE`), such as the state of libc's random numbers.
fn with_flag(smaps: &str, wanted: &str, own: &Own) -> Vec<VirtRange> {
    const NOT_ITS_OWN: [&str; 3] = ["io", "pf", DROPPABLE];
    let mut kept = Vec::new();
    let mut last = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |wanted: &str| flags.split_ascii_whitespace().any(|flag| flag == wanted);
            let is_kept = has(wanted) && !NOT_ITS_OWN.into_iter().any(has);
            kept.extend(last.take().filter(|range| is_kept && !own.has(*range)));
        } else if let Some(mapping) = mappings(line).next() {
            let is_of_kernel = ["[vdso]", "[vsyscall]"].contains(&mapping.name);
            last = (!is_of_kernel && !mapping.name.starts_with("[vvar")).then_some(mapping.range);
        }
    }
    kept
}

/// The parts of a process that a child lacks, by the texts of their `maps`.
pub(crate) fn missing(maps: &str, of_child: &str) -> Vec<VirtRange> {
    let mut missing = Vec::new();
    let mut theirs = mappings(of_child).map(|mapping| mapping.range).peekable();
    for mapping in mappings(maps) {
        let mut at = mapping.range.start;
        while at < mapping.range.end() {
            match theirs.peek() {
                Some(other) if other.end() <= at => _ = theirs.next(),
                Some(other) if other.start <= at => at = other.end().min(mapping.range.end()),
                other => {
                    let next = other.map_or(usize::MAX, |other| other.start);
                    let end = next.min(mapping.range.end());
                    missing.push(VirtRange::between(at, end));
                    at = end;
                }
            }
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_belong_to_the_mapping_before_them() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nVmFlags: rd wr mr\n\
            5000-6000 rw-p 00000000 00:00 0 \nVmFlags: rd wr dc\n\
            7000-8000 rw-s 00000000 00:06 9 /dev/fb0\nVmFlags: rd wr io pf dc dd\n\
            9000-a000 r-xp 00000000 00:00 0 [vdso]\nVmFlags: rd ex de dd\n\
            b000-c000 rw-p 00000000 00:00 0 \nVmFlags: rd wr dd\n\
            d000-e000 rw-p 00000000 00:00 0 \nVmFlags: rd wr dp wf dd\n\
            e000-f000 rw-p 00000000 00:00 0 \nVmFlags: rd wr wf\n";
        assert_eq!(from_smaps(smaps, &Own::default()), [VirtRange::between(0x5000, 0x6000)]);
        assert_eq!(out_of_core_files(smaps, &Own::default()), [VirtRange::between(0xb000, 0xc000)]);
        assert_eq!(emptied(smaps, &Own::default()), [VirtRange::between(0xe000, 0xf000)]);
    }

    #[test]
    fn what_a_child_lacks_is_found_though_its_mappings_are_others() {
        let line = |range| format!("{range} rw-p 00000000 00:00 0 \n");
        let maps = [line("1000-3000"), line("3000-4000"), line("8000-a000")].concat();
        let child = [line("1000-4000"), line("9000-b000")].concat();
        assert_eq!(missing(&maps, &child), [VirtRange::between(0x8000, 0x9000)]);
        assert_eq!(missing(&maps, &maps), []);
        assert_eq!(missing(&maps, "").len(), 3);
    }
}

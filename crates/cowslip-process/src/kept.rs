//! Memory that a program keeps from its children (`MADV_DONTFORK`), as V8 does. A holder has it all the same.

use cowslip_sys::procfs::mappings;
use cowslip_sys::units::VirtRange;

/// Finds it by the text of `/proc/PID/smaps`.
pub(crate) fn from_smaps(smaps: &str) -> Vec<VirtRange> {
    let mut kept = Vec::new();
    let mut last = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let is_kept = flags.split_ascii_whitespace().any(|flag| flag == "dc");
            kept.extend(last.take().filter(|_| is_kept));
        } else if let Some(mapping) = mappings(line).next() {
            last = Some(mapping.range);
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
            5000-6000 rw-p 00000000 00:00 0 \nVmFlags: rd wr dc\n";
        assert_eq!(from_smaps(smaps), [VirtRange::between(0x5000, 0x6000)]);
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

//! Facts about a range from `/proc/self/smaps`.

use std::fs;

use cowslip::units::VirtRange;

use super::error::{Result, during};

/// Bytes of `range` that huge entries of the page table map.
pub(super) fn huge_mapped_bytes(range: VirtRange) -> Result<u64> {
    const COUNTED: [&str; 3] = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"];
    let mut bytes = 0;
    for_each_field(range, |name, words| {
        if COUNTED.contains(&name) {
            let kib: u64 = words.next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
            bytes += kib << 10;
        }
    })?;
    Ok(bytes)
}

/// Returns true if a part of `range` is registered with a userfaultfd, for missing, minor or protected pages.
pub(super) fn is_registered(range: VirtRange) -> Result<bool> {
    let mut is_registered = false;
    for_each_field(range, |name, words| {
        is_registered |= name == "VmFlags:" && words.any(|flag| ["um", "ui", "uw"].contains(&flag));
    })?;
    Ok(is_registered)
}

/// Calls `visit` with each field of the mappings that begin in `range`: the name, and the words behind it.
fn for_each_field(
    range: VirtRange,
    mut visit: impl FnMut(&str, &mut std::str::SplitAsciiWhitespace<'_>),
) -> Result<()> {
    let smaps = fs::read_to_string("/proc/self/smaps").map_err(during("read /proc/self/smaps"))?;
    let mut inside = false;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(name) = words.next() else { continue };
        if let Some(start) = mapping_start(name) {
            inside = range.contains(start);
        } else if inside {
            visit(name, &mut words);
        }
    }
    Ok(())
}

/// The start of a range of addresses such as `7f00-7fff`.
fn mapping_start(word: &str) -> Option<usize> {
    usize::from_str_radix(word.split_once('-')?.0, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_mappings_are_told_from_their_fields() {
        assert_eq!(mapping_start("7f1200000000-7f1240000000"), Some(0x7f12_0000_0000));
        assert_eq!(mapping_start("AnonHugePages:"), None);
        assert_eq!(mapping_start("Kernel-Size:"), None);
    }
}

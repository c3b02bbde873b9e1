//! The address axis without its gaps: bands of used addresses, each with a height.

use std::collections::HashMap;

use serde::Serialize;

/// Larger gaps become breaks.
const LEAST_GAP_BYTES: u64 = 2 << 20;
/// A mapping up to this size is shown whole.
const WHOLE_BYTES: u64 = 32 << 20;
/// The unit in which touched addresses are counted.
const CHUNK_BYTES: u64 = 2 << 20;
const MOST_BANDS: usize = 32;
/// The least share of the axis that a tiny band gets if there are few.
const LEAST_SHARE: f64 = 0.03;

/// Addresses without a gap between them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Band {
    pub(super) start: u64,
    pub(super) end: u64,
    /// In bytes, on the scale of the largest band: small ones are drawn larger than they are.
    pub(super) height: f64,
}

/// The bands of each space, given its mappings and the addresses touched in it.
pub(super) fn bands(spaces: &[Used]) -> Vec<Vec<Band>> {
    let ranges: Vec<_> = spaces.iter().map(Used::ranges).collect();
    let all = || ranges.iter().flatten();
    let total: u64 = all().map(|(start, end)| end - start).sum();
    let share = LEAST_SHARE.min(0.5 / all().count().max(1) as f64);
    let least = (total as f64 * share).max(1.0);
    let band =
        |&(start, end): &(u64, u64)| Band { start, end, height: ((end - start) as f64).max(least) };
    ranges.iter().map(|ranges| ranges.iter().map(band).collect()).collect()
}

/// The used part of an address space.
#[derive(Default)]
pub(super) struct Used {
    mapped: Vec<(u64, u64)>,
    /// Faults by chunk and by the group of the mapping.
    touched: HashMap<(u64, u32), u64>,
}

impl Used {
    pub(super) fn map(&mut self, start: u64, end: u64) {
        self.mapped.push((start, end));
    }

    pub(super) fn touch(&mut self, address: u64, group: u32) {
        *self.touched.entry((address / CHUNK_BYTES, group)).or_default() += 1;
    }

    pub(super) fn faults(&self) -> u64 {
        self.touched.values().sum()
    }

    /// The group with the most faults in each of its bands.
    pub(super) fn busiest_groups(&self, bands: &[Band]) -> Vec<Option<u32>> {
        let mut counts: HashMap<(usize, u32), u64> = HashMap::new();
        for ((chunk, group), count) in &self.touched {
            // Gaps between bands are longer than a chunk: all touches in a chunk lie in one band.
            let band = bands.partition_point(|band| band.end <= chunk * CHUNK_BYTES);
            *counts.entry((band, *group)).or_default() += count;
        }
        let mut most = vec![(0, None); bands.len()];
        for ((band, group), count) in counts {
            if let Some(most) = most.get_mut(band) {
                *most = (*most).max((count, Some(group)));
            }
        }
        most.into_iter().map(|(_, group)| group).collect()
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        let mut chunks: Vec<_> = self.touched.keys().map(|(chunk, _)| *chunk).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut mapped = self.mapped.clone();
        mapped.sort_unstable();
        mapped.dedup();
        let mut ranges = Vec::new();
        for &(start, end) in &mapped {
            let first = chunks.partition_point(|chunk| end_of(*chunk) <= start);
            let last = chunks.partition_point(|chunk| chunk * CHUNK_BYTES < end);
            let touched = (last - first) as u64 * CHUNK_BYTES;
            if end - start <= WHOLE_BYTES.max(16 * touched) {
                ranges.push((start, end));
            }
        }
        // For a large mapping that was hardly used, and for addresses without a known mapping, the touched
        // part.
        let chunk = |chunk: &u64| {
            let (start, end) = (chunk * CHUNK_BYTES, end_of(*chunk));
            let clip = |&(from, to): &(u64, u64)| (start.max(from), end.min(to));
            let holder = mapped[..mapped.partition_point(|(from, _)| *from < end)].last();
            holder.map(clip).filter(|(from, to)| from < to).unwrap_or((start, end))
        };
        ranges.extend(chunks.iter().map(chunk));
        merge(ranges)
    }
}

/// The end of a chunk; the last of all addresses belongs to none.
fn end_of(chunk: u64) -> u64 {
    (chunk + 1).saturating_mul(CHUNK_BYTES)
}

/// Joins ranges that overlap or are near, so that no more than [`MOST_BANDS`] are left.
fn merge(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut gaps: Vec<u64> =
        joined(&ranges, 0).windows(2).map(|pair| pair[1].0 - pair[0].1).collect();
    gaps.sort_unstable_by_key(|gap| std::cmp::Reverse(*gap));
    let too_many = gaps.get(MOST_BANDS - 1).copied().unwrap_or(0);
    joined(&ranges, too_many.max(LEAST_GAP_BYTES))
}

fn joined(sorted: &[(u64, u64)], gap: u64) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for &(start, end) in sorted {
        match joined.last_mut() {
            Some(last) if start <= last.1.saturating_add(gap) => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ends(used: Used) -> Vec<(u64, u64)> {
        bands(&[used])[0].iter().map(|band| (band.start, band.end)).collect()
    }

    #[test]
    fn gaps_are_left_out_and_small_ones_stay() {
        let mut used = Used::default();
        used.map(0, MIB);
        used.map(2 * MIB, 3 * MIB);
        used.map(100 * MIB, 101 * MIB);
        assert_eq!(ends(used), [(0, 3 * MIB), (100 * MIB, 101 * MIB)]);
    }

    #[test]
    fn of_a_large_mapping_only_what_was_touched_is_shown() {
        let mut used = Used::default();
        used.map(MIB, 1 << 40);
        used.touch(MIB + 5, 1);
        used.touch(501 * MIB, 1);
        // Nothing is mapped here, but it was touched.
        used.touch((2 << 40) + 1, 0);
        let wanted = [(MIB, 2 * MIB), (500 * MIB, 502 * MIB), (2 << 40, (2 << 40) + 2 * MIB)];
        assert_eq!(ends(used), wanted);
    }

    #[test]
    fn a_band_is_named_by_what_has_the_most_faults_in_it() {
        let mut used = Used::default();
        used.map(MIB, 3 * MIB);
        used.map(100 * MIB, 101 * MIB);
        for (address, group) in [(MIB, 1), (2 * MIB, 2), (3 * MIB - 1, 2), (101 * MIB - 1, 3)] {
            used.touch(address, group);
        }
        used.map(200 * MIB, 201 * MIB);
        let used = [used];
        let bands = &bands(&used)[0];
        assert_eq!(bands.len(), 3);
        assert_eq!(used[0].busiest_groups(bands), [Some(2), Some(3), None]);
    }

    #[test]
    fn there_are_never_too_many_and_none_is_too_small() {
        let mut used = Used::default();
        for nth in 0..1000 {
            used.map(nth * nth * 8 * MIB, nth * nth * 8 * MIB + 4096);
        }
        used.map(1 << 50, (1 << 50) + (1 << 30));
        used.touch((1 << 50) + 1, 1);
        let bands = &bands(&[used])[0];
        assert!(bands.len() <= MOST_BANDS, "{}", bands.len());
        let total: f64 = bands.iter().map(|band| band.height).sum();
        assert!(bands.iter().all(|band| band.height / total >= 0.25 / bands.len() as f64));
    }
}

//! The address axis without its gaps: bands of used addresses, each with a height that follows the touched memory.
//!
//! ```text
//!      ▲ ┌──────┐ ─┐
//!      │ │ ···· │  │ touched: as high as it is long if all its pages are
//!      │ ├──────┤ ─┤
//!      │ │      │  │ quiet, without a fault: a quarter of a chunk at most, however long it is
//!      │ ├──────┤ ─┤
//!      │ │  ··  │  │ touched
//!      │ └──────┘ ─┘
//!      ≈             nothing is mapped
//! ```

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::Serialize;

use super::dots::LOW_BITS;

/// Larger gaps become breaks.
const LEAST_GAP_BYTES: u64 = 2 << 20;
/// A mapping up to this size is shown whole.
const WHOLE_BYTES: u64 = 32 << 20;
/// The unit in which touched addresses are counted.
const CHUNK_BYTES: u64 = 2 << 20;
/// Addresses without a fault between two with faults are a band of their own from this length on.
const LEAST_QUIET_BYTES: u64 = 2 * CHUNK_BYTES;
/// A band without a fault is no higher than so many bytes of others.
const QUIET_HEIGHT_BYTES: u64 = CHUNK_BYTES / 4;
/// A chunk with few faults is at least this part as high as one whose pages all have one.
const LEAST_TOUCHED: u64 = 8;
const PAGE_BYTES: u64 = 1 << LOW_BITS;
const MOST_BANDS: usize = 32;
/// The least share of the axis that a tiny band gets if there are few.
const LEAST_SHARE: f64 = 0.03;
/// The same for a band without a fault.
const LEAST_QUIET_SHARE: f64 = LEAST_SHARE / 3.0;

/// Addresses without a gap between them, on one scale.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Band {
    pub(super) start: u64,
    pub(super) end: u64,
    /// In bytes, on the scale of the largest touched band: small ones are drawn larger than they are, quiet ones
    /// smaller.
    pub(super) height: f64,
}

/// The bands of each space, given its mappings and the addresses touched in it.
pub(super) fn bands(spaces: &[Used]) -> Vec<Vec<Band>> {
    let parts: Vec<_> = spaces.iter().map(Used::parts).collect();
    let all = || parts.iter().flatten();
    let total: u64 = all().map(|part| part.height_bytes).sum();
    let fair = 0.5 / all().count().max(1) as f64;
    let band = |part: &Part| {
        let share = if part.is_touched { LEAST_SHARE } else { LEAST_QUIET_SHARE };
        let least = (total as f64 * share.min(fair)).max(1.0);
        let Part { start, end, .. } = *part;
        Band { start, end, height: (part.height_bytes as f64).max(least) }
    };
    parts.iter().map(|parts| parts.iter().map(band).collect()).collect()
}

/// Addresses with faults, or without any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    start: u64,
    end: u64,
    is_touched: bool,
    height_bytes: u64,
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

    fn parts(&self) -> Vec<Part> {
        let mut chunks: Vec<_> = self.touched.keys().map(|(chunk, _)| *chunk).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut faults: HashMap<u64, u64> = HashMap::new();
        for ((chunk, _), count) in &self.touched {
            *faults.entry(*chunk).or_default() += count;
        }
        let mut parts = split(&self.ranges(&chunks), &chunks);
        for part in &mut parts {
            let height = |chunk: &u64| {
                let most = end_of(*chunk).min(part.end) - (chunk * CHUNK_BYTES).max(part.start);
                (faults[chunk].saturating_mul(PAGE_BYTES)).clamp(most / LEAST_TOUCHED, most)
            };
            part.height_bytes = match within(&chunks, part.start, part.end) {
                [] => (part.end - part.start).min(QUIET_HEIGHT_BYTES),
                chunks => chunks.iter().map(height).sum(),
            };
        }
        parts
    }

    fn ranges(&self, chunks: &[u64]) -> Vec<(u64, u64)> {
        let mut mapped = self.mapped.clone();
        mapped.sort_unstable();
        mapped.dedup();
        let mut ranges = Vec::new();
        for &(start, end) in &mapped {
            let touched = within(chunks, start, end).len() as u64 * CHUNK_BYTES;
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

/// Sets the longest runs without a fault apart, as far as there is room for more bands.
fn split(ranges: &[(u64, u64)], chunks: &[u64]) -> Vec<Part> {
    let mut runs: Vec<_> = ranges.iter().flat_map(|range| quiet_runs(*range, chunks)).collect();
    runs.sort_unstable_by_key(|(_, (start, end))| Reverse(end - start));
    let mut room = MOST_BANDS.saturating_sub(ranges.len());
    let mut quiet = Vec::new();
    for ((start, end), run) in runs {
        let more = usize::from(start < run.0) + usize::from(run.1 < end);
        if more <= room {
            room -= more;
            quiet.push(run);
        }
    }
    quiet.sort_unstable();
    let mut parts = Vec::new();
    for &(start, end) in ranges {
        let mut at = start;
        let mut push = |to: u64, is_touched| {
            if at < to {
                parts.push(Part { start: at, end: to, is_touched, height_bytes: 0 });
                at = to;
            }
        };
        for run in quiet.iter().filter(|run| start <= run.0 && run.1 <= end) {
            push(run.0, true);
            push(run.1, false);
        }
        push(end, true);
    }
    parts
}

/// The long runs without a fault in a range, each with the range; all of the range if there was none in it.
fn quiet_runs(range: (u64, u64), chunks: &[u64]) -> Vec<((u64, u64), (u64, u64))> {
    let (start, end) = range;
    let chunks = within(chunks, start, end);
    let ends = chunks.iter().map(|chunk| end_of(*chunk).min(end));
    let starts = chunks.iter().map(|chunk| (chunk * CHUNK_BYTES).max(start));
    let runs = [start].into_iter().chain(ends).zip(starts.chain([end]));
    let is_quiet = |(from, to): &(u64, u64)| {
        chunks.is_empty() || to.saturating_sub(*from) >= LEAST_QUIET_BYTES
    };
    runs.filter(is_quiet).map(|run| (range, run)).collect()
}

/// The touched chunks that lie in a range, at least in part.
fn within(chunks: &[u64], start: u64, end: u64) -> &[u64] {
    let first = chunks.partition_point(|chunk| end_of(*chunk) <= start);
    let last = chunks.partition_point(|chunk| chunk * CHUNK_BYTES < end);
    &chunks[first..last]
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
    gaps.sort_unstable_by_key(|gap| Reverse(*gap));
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
            used.touch(nth * nth * 8 * MIB, 1);
        }
        used.map(1 << 50, (1 << 50) + (1 << 30));
        used.touch((1 << 50) + 1, 1);
        let bands = &bands(&[used])[0];
        assert!(bands.len() <= MOST_BANDS, "{}", bands.len());
        let total: f64 = bands.iter().map(|band| band.height).sum();
        assert!(bands.iter().all(|band| band.height / total >= 0.25 / bands.len() as f64));
    }

    #[test]
    fn heights_follow_touched_memory() {
        let mut used = Used::default();
        // Two reservations of which one page each was touched, and between them what has all the faults.
        used.map(0, 24 * MIB);
        used.touch(0, 1);
        used.map(24 * MIB, 38 * MIB);
        (24 * 256..38 * 256).for_each(|page| used.touch(page * 4096, 2));
        used.map(38 * MIB, 62 * MIB);
        used.touch(62 * MIB - 1, 3);
        let used = [used];
        let bands = &bands(&used)[0];
        let ends: Vec<_> = bands.iter().map(|band| (band.start / MIB, band.end / MIB)).collect();
        assert_eq!(ends, [(0, 2), (2, 24), (24, 38), (38, 60), (60, 62)]);
        assert_eq!(used[0].busiest_groups(bands), [Some(1), None, Some(2), None, Some(3)]);
        let total: f64 = bands.iter().map(|band| band.height).sum();
        let share = |nth: usize| bands[nth].height / total;
        assert!(share(2) > 0.85, "{bands:?}");
        assert!([0, 1, 3, 4].iter().all(|nth| share(*nth) < 0.04), "{bands:?}");
    }

    #[test]
    fn a_mapping_without_a_fault_is_low() {
        let mut used = Used::default();
        used.map(0, 2 * MIB);
        (0..512).for_each(|page| used.touch(page * 4096, 1));
        used.map(100 * MIB, 132 * MIB);
        let bands = &bands(&[used])[0];
        assert_eq!(bands.len(), 2);
        assert!(bands[1].height * 4.0 <= bands[0].height, "{bands:?}");
    }
}

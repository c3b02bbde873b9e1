//! Places the stored bytes of chunks in a file.
//!
//! ```text
//!  0    4096                  2 MiB       4 MiB       6 MiB                            22 MiB
//!  header | a small chunk, … | a whole    | a whole    | a small chunk, another, …      | a whole …
//!           gap, then filled   at multiples of 2 MiB     a run set aside for small ones
//! ```
//! Whole chunks lie at multiples of their length, so that they can be mapped by huge pages. The others lie side by side
//! in runs between them, so that there is no gap before each whole one. Space that is never filled is a hole: it adds
//! to the file's length, but takes no blocks of the disk.

use cowslip_sys::units::CHUNK_BYTES;

use super::format::PAGE_BYTES;

const WHOLE_BYTES: u64 = CHUNK_BYTES as u64;
/// A run has this part of the bytes in runs so far, so that its empty rest is small beside them.
const RUN_PART: u64 = 8;
const LONGEST_RUN_BYTES: u64 = 8 * WHOLE_BYTES;

#[derive(Debug)]
pub(super) struct Layout {
    end_bytes: u64,
    /// Space that may still be filled, in order, not adjacent.
    gaps: Vec<Gap>,
    /// The total of unaligned bytes.
    small_bytes: u64,
}

#[derive(Debug)]
struct Gap {
    start: u64,
    end: u64,
}

impl Default for Layout {
    /// Begins behind the header.
    fn default() -> Self {
        Self { end_bytes: PAGE_BYTES as u64, gaps: Vec::new(), small_bytes: 0 }
    }
}

impl Layout {
    /// The place for `bytes`, whole pages, at a multiple of `alignment_bytes`: that of a page or of a chunk.
    pub(super) fn place(&mut self, bytes: u64, alignment_bytes: u64) -> u64 {
        if alignment_bytes == WHOLE_BYTES {
            self.reserve(self.end_bytes.next_multiple_of(WHOLE_BYTES) - self.end_bytes);
            let place = self.end_bytes;
            self.end_bytes += bytes;
            return place;
        }
        self.small_bytes += bytes;
        let has_room = |gap: &Gap| gap.end - gap.start >= bytes;
        let found = self.gaps.iter().position(has_room).unwrap_or_else(|| {
            let run_bytes = (self.small_bytes / RUN_PART).clamp(bytes, LONGEST_RUN_BYTES);
            let end = (self.end_bytes + run_bytes).next_multiple_of(WHOLE_BYTES);
            self.reserve(end - self.end_bytes);
            self.gaps.len() - 1
        });
        let gap = &mut self.gaps[found];
        let place = gap.start;
        gap.start += bytes;
        if gap.start == gap.end {
            self.gaps.remove(found);
        }
        place
    }

    /// Sets the next bytes of the file aside.
    fn reserve(&mut self, bytes: u64) {
        let start = self.end_bytes;
        self.end_bytes += bytes;
        match self.gaps.last_mut() {
            Some(last) if last.end == start => last.end = self.end_bytes,
            _ if bytes == 0 => {}
            _ => self.gaps.push(Gap { start, end: self.end_bytes }),
        }
    }

    /// The end of the last placed bytes.
    pub(super) fn end_bytes(&self) -> u64 {
        let last = self.gaps.last().filter(|gap| gap.end == self.end_bytes);
        last.map_or(self.end_bytes, |gap| gap.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    /// Places chunks of these numbers of pages, those of 512 aligned, and checks that none overlaps another; returns
    /// the length of the file, and the empty part of it.
    fn placed(pages: impl Iterator<Item = u64>) -> (u64, u64) {
        let mut layout = Layout::default();
        let mut parts = vec![(0, PAGE)];
        for pages in pages {
            let alignment = if pages == 512 { WHOLE_BYTES } else { PAGE };
            let place = layout.place(pages * PAGE, alignment);
            assert!(place.is_multiple_of(alignment));
            parts.push((place, place + pages * PAGE));
        }
        parts.sort_unstable();
        assert!(parts.is_sorted_by(|before, after| before.1 <= after.0));
        let end = layout.end_bytes();
        assert_eq!(end, parts.last().unwrap().1);
        (end, end - parts.iter().map(|(start, end)| end - start).sum::<u64>())
    }

    #[test]
    fn whole_chunks_alone_lie_one_after_another() {
        assert_eq!(placed(std::iter::repeat_n(512, 100)), (101 * WHOLE_BYTES, WHOLE_BYTES - PAGE));
    }

    #[test]
    fn small_chunks_alone_leave_nothing_empty() {
        for pages in [1, 17, 300, 448] {
            assert_eq!(placed(std::iter::repeat_n(pages, 100)).1, 0, "{pages}");
        }
    }

    #[test]
    fn any_mixture_leaves_less_than_an_eighth_empty() {
        for (whole, pages) in [(1, 448), (1, 260), (2, 171), (7, 300), (1, 1), (30, 90)] {
            let period = (0..=whole).map(|i| if i == 0 { pages } else { 512 });
            let (length, empty) = placed(std::iter::repeat_n(period, 2000).flatten());
            assert!(empty < length / 8, "{whole} to 1 of {pages}: {empty} of {length}");
        }
        let mut state = 5u64;
        let sizes = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 600
        });
        let sizes = sizes.map(|size| if size > 448 { 512 } else { size.max(1) });
        let (length, empty) = placed(sizes.take(4000));
        assert!(empty < length / 50, "{empty} of {length}");
    }
}

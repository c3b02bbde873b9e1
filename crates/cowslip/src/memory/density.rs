//! The used share of huge pages, and the decisions that follow from it.
//!
//! Nothing here asks the kernel or changes memory: `trim` and `grow` carry the decisions out.
//!
//! ```text
//!            first touch                    15/16 are there
//!   base pages ─────▶ 4 KiB each ───────────────────────────▶ huge page
//!        ▲                 ▲                                       │
//!        │                 └── an eighth was given back: split ────┘
//!        └─ as much again of the next mapping begins huge once three quarters of what was handed out before are there
//! ```
//! The eighth bounds memory: at least 7/8 of a huge page that stays are used, so that it holds at most 8/7 = 1.143
//! times the memory in use. A page is made huge again at 15/16 only, so that a program that gives back and takes again
//! around one of the two does not have pages split and made in turn.

use std::collections::BTreeMap;

use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

use crate::memory::page_size::BaseChunks;

/// A huge page is split once one in this many of its pages was given back.
const SPLIT_SHARE: usize = 8;
/// A chunk of base pages is made huge if at most one in this many of its pages is missing.
const MISSING_SHARE: u64 = 16;
/// The part of memory handed out that must be there before more of it may begin on huge pages.
const TRUST: (u64, u64) = (3, 4);

const WORD_BITS: usize = u64::BITS as usize;
/// For the smallest pages that any kernel has.
const MOST_PAGES: usize = CHUNK_BYTES / 4096;

/// A set of pages of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PageSet([u64; MOST_PAGES / WORD_BITS]);

impl PageSet {
    /// The whole pages of `part`, of the chunk at `chunk_start`.
    pub(crate) fn of(chunk_start: usize, part: VirtRange) -> Self {
        let page = page_size_bytes();
        let mut pages = Self::default();
        let (first, end) = (part.start - chunk_start, part.end() - chunk_start);
        (first.div_ceil(page)..end / page)
            .for_each(|i| pages.0[i / WORD_BITS] |= 1 << (i % WORD_BITS));
        pages
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(word, more)| *word |= more);
    }

    /// Each page of it, of the chunk at `chunk_start`.
    pub(crate) fn pages(self, chunk_start: usize) -> impl Iterator<Item = VirtRange> {
        let page = page_size_bytes();
        let is_in = move |i: &usize| self.0[i / WORD_BITS] & (1 << (i % WORD_BITS)) != 0;
        let place = move |i| VirtRange::new(chunk_start + i * page, page);
        (0..CHUNK_BYTES / page).filter(is_in).map(place)
    }
}

/// The parts of chunks that were given back.
#[derive(Debug, Default)]
pub(crate) struct Density {
    chunks: BTreeMap<usize, Given>,
    /// Memory that takes base pages until it is dense.
    pub(crate) begins_small: bool,
    /// Chunks that the program wants no huge pages in.
    pub(crate) refused: BaseChunks,
    /// Memory that may have begun on huge pages since the last look.
    pub(crate) trusted: Option<VirtRange>,
    pub(crate) tending: Tending,
}

/// Progress of the background work that makes chunks huge.
#[derive(Debug, Default)]
pub(crate) struct Tending {
    /// The next chunk to look at.
    pub(crate) next: usize,
    /// Not before this time; 0 is a moment after the next look.
    pub(crate) not_before_ns: u64,
    pub(crate) delay_ns: u64,
    /// The size of the file's content when a round began.
    pub(crate) held_bytes: u64,
    /// In this round something was done, or could not be done yet.
    pub(crate) has_changed: bool,
    /// Time that this round took.
    pub(crate) busy_ns: u64,
    /// The kernel cannot make file memory huge afterwards.
    pub(crate) is_futile: bool,
}

impl Tending {
    /// Looks again at once: chunks that could not be looked at may be ready now.
    pub(crate) fn hurry(&mut self) {
        self.delay_ns = 0;
        self.not_before_ns = 0;
    }
}

#[derive(Debug, Default)]
struct Given {
    /// Pages that were of no use when they were given back, and are kept in memory.
    kept: PageSet,
    is_split: bool,
}

impl Density {
    pub(crate) fn new(chunks: usize) -> Self {
        Self { refused: BaseChunks::new(chunks), ..Self::default() }
    }

    /// Notes that a part of a chunk was given back and its pages are kept. True if the chunk is worth splitting by now.
    pub(crate) fn keep(&mut self, chunk: usize, pages: PageSet) -> bool {
        let given = self.chunks.entry(chunk).or_default();
        given.kept.add(pages);
        is_worth_splitting(given.kept.count())
    }

    /// Takes the kept pages, which from here on are not kept.
    pub(crate) fn take_kept(&mut self, chunk: usize) -> PageSet {
        self.chunks.get_mut(&chunk).map(|given| std::mem::take(&mut given.kept)).unwrap_or_default()
    }

    /// Notes that a chunk is on base pages from here on.
    pub(crate) fn set_split(&mut self, chunk: usize) {
        self.chunks.entry(chunk).or_default().is_split = true;
    }

    pub(crate) fn is_split(&self, chunk: usize) -> bool {
        self.chunks.get(&chunk).is_some_and(|given| given.is_split)
    }

    /// Treats a chunk as new.
    pub(crate) fn forget(&mut self, chunk: usize) {
        self.chunks.remove(&chunk);
    }

    pub(crate) fn has_any(&self) -> bool {
        !self.chunks.is_empty()
    }

    /// The first chunk from `from` on of which a part was given back.
    pub(crate) fn next_given(&self, from: usize) -> Option<usize> {
        self.chunks.range(from..).next().map(|(chunk, _)| *chunk)
    }

    /// True if enough of a chunk was given back and is kept.
    pub(crate) fn is_due(&self, chunk: usize) -> bool {
        self.chunks.get(&chunk).is_some_and(|given| is_worth_splitting(given.kept.count()))
    }

    /// True if any chunk is due.
    pub(crate) fn is_any_due(&self) -> bool {
        self.chunks.keys().any(|chunk| self.is_due(*chunk))
    }
}

/// True if this many pages of a huge one are better given back than kept for the sake of the rest.
pub(crate) fn is_worth_splitting(given_pages: usize) -> bool {
    given_pages * page_size_bytes() * SPLIT_SHARE >= CHUNK_BYTES
}

/// True if a chunk of base pages is better one huge page.
pub(crate) fn is_dense(held_bytes: u64) -> bool {
    (CHUNK_BYTES as u64).saturating_sub(held_bytes) * MISSING_SHARE <= CHUNK_BYTES as u64
}

/// The amount of new memory that may begin on huge pages in a program that has used `used_bytes` so far, of which
/// `held_bytes` are in memory: as much again, so that unused memory is bounded by used memory.
pub(crate) fn trusted_bytes(used_bytes: u64, held_bytes: u64) -> u64 {
    let (enough, all) = TRUST;
    if held_bytes.saturating_mul(all) >= used_bytes.saturating_mul(enough) { used_bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const CHUNK: usize = 3 * CHUNK_BYTES;

    fn part(first: usize, pages: usize) -> PageSet {
        PageSet::of(CHUNK, VirtRange::new(CHUNK + first * PAGE, pages * PAGE))
    }

    #[test]
    fn pages_are_counted_once_and_listed_where_they_lie() {
        let mut pages = part(60, 10);
        pages.add(part(65, 3));
        pages.add(part(511, 1));
        assert_eq!(pages.count(), 11);
        let places: Vec<_> = pages.pages(CHUNK).map(|it| (it.start - CHUNK) / PAGE).collect();
        assert_eq!(places, [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 511]);
        let torn = PageSet::of(CHUNK, VirtRange::new(CHUNK + 1, 2 * PAGE));
        assert_eq!(torn.count(), 1, "whole pages only");
    }

    #[test]
    fn a_huge_page_is_split_when_an_eighth_of_it_was_given_back() {
        let mut density = Density::default();
        assert!(!density.keep(7, part(0, 40)));
        assert!(!density.keep(7, part(10, 40)), "50 pages, some of them twice");
        assert!(!density.keep(8, part(0, 40)), "another chunk");
        assert!(!density.is_any_due());
        assert!(density.keep(7, part(100, 14)));
        assert!(density.is_due(7) && !density.is_due(8) && density.is_any_due());
        assert_eq!(density.take_kept(7).count(), 64);
        density.set_split(7);
        assert!(density.is_split(7) && !density.is_any_due());
        assert_eq!([0, 8, 9].map(|from| density.next_given(from)), [Some(7), Some(8), None]);
        density.forget(7);
        assert!(!density.is_split(7) && density.has_any());
    }

    #[test]
    fn what_stays_huge_holds_little_that_is_not_used_and_what_becomes_huge_is_not_split_at_once() {
        let pages = |count: usize| (count * PAGE) as u64;
        let most_given = (0..=512).filter(|&given| !is_worth_splitting(given)).max().unwrap();
        assert!(512.0 / (512 - most_given) as f64 <= 1.15);
        let least_held = (0..=512).find(|&held| is_dense(pages(held))).unwrap();
        assert!(!is_worth_splitting(2 * (512 - least_held) - 1), "{least_held}");
        assert!(is_dense(pages(512)) && !is_dense(0));
    }

    #[test]
    fn new_memory_begins_huge_in_a_program_that_fills_what_it_has() {
        assert_eq!(trusted_bytes(0, 0), 0);
        assert_eq!(trusted_bytes(100, 74), 0);
        assert_eq!(trusted_bytes(100, 75), 100);
        assert_eq!(trusted_bytes(u64::MAX, u64::MAX), u64::MAX);
    }
}

//! The parts of huge pages that were given back.

use std::collections::BTreeMap;

use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

use crate::memory::page_size::BaseChunks;

const WORD_BITS: usize = u64::BITS as usize;
/// For the smallest pages that any kernel has.
const MOST_PAGES: usize = CHUNK_BYTES / 4096;

/// A set of pages of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PageSet([u64; MOST_PAGES / WORD_BITS]);

impl PageSet {
    /// The whole pages of `part`, of the chunk at `chunk_start`.
    pub(crate) fn from_part(chunk_start: usize, part: VirtRange) -> Self {
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

    /// Notes that a part of a chunk was given back and its pages are kept. Returns the number of pages kept so far.
    pub(crate) fn keep(&mut self, chunk: usize, pages: PageSet) -> usize {
        let given = self.chunks.entry(chunk).or_default();
        given.kept.add(pages);
        given.kept.count()
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

    /// The number of pages of a chunk that were given back and are kept.
    pub(crate) fn kept_pages(&self, chunk: usize) -> usize {
        self.chunks.get(&chunk).map_or(0, |given| given.kept.count())
    }

    /// The most pages of one chunk that were given back and are kept.
    pub(crate) fn most_kept_pages(&self) -> usize {
        self.chunks.values().map(|given| given.kept.count()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const CHUNK: usize = 3 * CHUNK_BYTES;

    fn part(first: usize, pages: usize) -> PageSet {
        PageSet::from_part(CHUNK, VirtRange::new(CHUNK + first * PAGE, pages * PAGE))
    }

    #[test]
    fn pages_are_counted_once_and_listed_where_they_lie() {
        let mut pages = part(60, 10);
        pages.add(part(65, 3));
        pages.add(part(511, 1));
        assert_eq!(pages.count(), 11);
        let places: Vec<_> = pages.pages(CHUNK).map(|page| (page.start - CHUNK) / PAGE).collect();
        assert_eq!(places, [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 511]);
        let torn = PageSet::from_part(CHUNK, VirtRange::new(CHUNK + 1, 2 * PAGE));
        assert_eq!(torn.count(), 1, "whole pages only");
    }

    #[test]
    fn pages_that_are_kept_count_once_until_they_are_taken() {
        let mut density = Density::default();
        assert_eq!([density.keep(7, part(0, 40)), density.keep(7, part(10, 40))], [40, 50]);
        assert_eq!([density.keep(8, part(0, 40)), density.keep(7, part(100, 14))], [40, 64]);
        assert_eq!([7, 8, 9].map(|chunk| density.kept_pages(chunk)), [64, 40, 0]);
        assert_eq!(density.most_kept_pages(), 64);
        assert_eq!(density.take_kept(7).count(), 64);
        density.set_split(7);
        assert!(density.is_split(7) && density.most_kept_pages() == 40);
        assert_eq!([0, 8, 9].map(|from| density.next_given(from)), [Some(7), Some(8), None]);
        density.forget(7);
        assert!(!density.is_split(7) && density.has_any());
    }
}

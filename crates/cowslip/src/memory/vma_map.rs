//! The use and the protection of each part of an arena.
//!
//! The spans cover the whole range, in order, without gaps; neighbours differ. Protection matters to a freeze: parts
//! with different protection are mappings of their own to the kernel, and so are chunks that take base pages beside
//! those that take huge ones.

use std::collections::BTreeMap;

use cowslip_sys::memory::Prot;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, round_up};

use crate::memory::page_size::BaseChunks;

/// The use of a part of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// Unused, and mapped by the arena.
    Free,
    /// Unused, and unmapped: it is handed out again if nothing else is mapped there by then.
    Hole,
    /// Handed out.
    Used,
    /// No longer the arena's: another mapping is there, or memory that [left](Self::Left) was unmapped.
    Foreign,
    /// Handed out, and private anonymous memory of the kernel's by now, as a part of a range that the program mapped as
    /// one.
    Detached,
    /// Handed out, and no longer the arena's to freeze or thaw, but still mapped from its file, privately: memory that
    /// left where nothing could hold its writers off while it was copied.
    Left,
}

impl Usage {
    /// True if the arena may hand it out.
    pub(crate) fn is_vacant(self) -> bool {
        matches!(self, Self::Free | Self::Hole)
    }

    /// True if it is handed out.
    pub fn is_used(self) -> bool {
        self == Self::Used
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) range: VirtRange,
    pub(crate) usage: Usage,
    pub(crate) prot: Prot,
}

#[derive(Debug)]
pub(crate) struct VmaMap {
    spans: Vec<Span>,
    start: usize,
    /// Start and end of memory that ever [left](Usage::Left), whatever its use is by now. Children that inherited it
    /// map its place in the file, and no token counts them.
    left: BTreeMap<usize, usize>,
    /// Never fewer than those that are mapped so: pieces cut too finely are parts of whole mappings.
    pub(crate) base_chunks: BaseChunks,
}

impl VmaMap {
    pub(crate) fn new(range: VirtRange) -> Self {
        Self {
            spans: vec![Span { range, usage: Usage::Free, prot: Prot::NONE }],
            start: range.start,
            left: BTreeMap::new(),
            base_chunks: BaseChunks::new(range.len / CHUNK_BYTES),
        }
    }

    /// The number of spans.
    pub(crate) fn span_count(&self) -> usize {
        self.spans.len()
    }

    /// The spans that meet `range`, cut to it.
    pub(crate) fn within(&self, range: VirtRange) -> impl Iterator<Item = Span> + '_ {
        let first = self.spans.partition_point(|span| span.range.end() <= range.start);
        self.spans[first..]
            .iter()
            .take_while(move |span| span.range.start < range.end())
            .map(move |span| Span { range: span.range.intersect(range), ..*span })
    }

    /// Makes all of `range` one span.
    pub(crate) fn set(&mut self, range: VirtRange, usage: Usage, prot: Prot) {
        if range.is_empty() {
            return;
        }
        let first = self.spans.partition_point(|span| span.range.end() <= range.start);
        let last = self.spans.partition_point(|span| span.range.start < range.end());
        let mut left = self.spans[first];
        left.range = VirtRange::between(left.range.start, range.start);
        let mut right = self.spans[last - 1];
        right.range = VirtRange::between(range.end(), right.range.end());

        let middle = Span { range, usage, prot };
        let mut fresh = [left, middle, right].into_iter().filter(|span| !span.range.is_empty());
        let fresh: [Option<Span>; 3] = [fresh.next(), fresh.next(), fresh.next()];
        self.spans.splice(first..last, fresh.into_iter().flatten());
        self.merge_around(first.saturating_sub(1), first + 3);
    }

    /// Makes all of `range`, which was in use, [left](Usage::Left).
    pub(crate) fn leave(&mut self, range: VirtRange, prot: Prot) {
        self.set(range, Usage::Left, prot);
        self.left.insert(range.start, range.end());
    }

    /// Makes all of `range` holes, after it was unmapped. A place that was left must not be handed out again.
    pub(crate) fn vacate(&mut self, range: VirtRange) {
        self.set(range, Usage::Hole, Prot::NONE);
        for left in self.left_within(range).collect::<Vec<_>>() {
            self.set(left, Usage::Foreign, Prot::NONE);
        }
    }

    /// The parts of `range` that were left, the last first.
    pub(crate) fn left_within(&self, range: VirtRange) -> impl Iterator<Item = VirtRange> {
        let before_end = self.left.range(..range.end()).rev();
        let parts = before_end.map(|(start, end)| VirtRange::between(*start, *end));
        parts
            .take_while(move |left| left.end() > range.start)
            .map(move |left| left.intersect(range))
    }

    fn merge_around(&mut self, first: usize, last: usize) {
        let mut i = last.min(self.spans.len() - 1);
        while i > first {
            let (before, after) = (self.spans[i - 1], self.spans[i]);
            if before.usage == after.usage && before.prot == after.prot {
                self.spans[i - 1].range.len += after.range.len;
                self.spans.remove(i);
            }
            i -= 1;
        }
    }

    /// True if all of `range` is of this usage.
    pub(crate) fn is_all(&self, range: VirtRange, usage: Usage) -> bool {
        self.within(range).all(|span| span.usage == usage)
    }

    /// True if all of `range` is vacant.
    pub(crate) fn is_vacant(&self, range: VirtRange) -> bool {
        self.within(range).all(|span| span.usage.is_vacant())
    }

    /// The unmapped parts of `range`.
    pub(crate) fn holes(&self, range: VirtRange) -> Vec<VirtRange> {
        let holes = self.within(range).filter(|span| span.usage == Usage::Hole);
        holes.map(|span| span.range).collect()
    }

    /// The free parts of `range`.
    pub(crate) fn free_within(&self, range: VirtRange) -> impl Iterator<Item = VirtRange> + '_ {
        let mut parts = self.within(range).peekable();
        std::iter::from_fn(move || {
            let mut free: VirtRange = parts.find(|span| span.usage == Usage::Free)?.range;
            while let Some(more) = parts.next_if(|span| span.usage == Usage::Free) {
                free.len += more.range.len;
            }
            Some(free)
        })
    }

    /// The ranges that are handed out.
    pub(crate) fn used(&self) -> Vec<VirtRange> {
        let used = self.spans.iter().filter(|span| span.usage == Usage::Used);
        used.map(|span| span.range).collect()
    }

    /// All ranges but holes and foreign ones.
    pub(crate) fn mapped(&self) -> Vec<VirtRange> {
        let is_mapped = |span: &&Span| !matches!(span.usage, Usage::Hole | Usage::Foreign);
        self.spans.iter().filter(is_mapped).map(|span| span.range).collect()
    }

    /// Bytes handed out.
    pub(crate) fn used_bytes(&self) -> u64 {
        let used = self.spans.iter().filter(|span| span.usage == Usage::Used);
        used.map(|span| span.range.len as u64).sum()
    }

    /// The first range of `len` bytes, aligned to `align`, in the parts that `allowed` cuts vacant space to.
    pub(crate) fn find_free<I: Iterator<Item = VirtRange>>(
        &self,
        len: usize,
        align: usize,
        mut allowed: impl FnMut(VirtRange) -> I,
    ) -> Option<VirtRange> {
        let runs = self.spans.chunk_by(|a, b| a.usage.is_vacant() == b.usage.is_vacant());
        let vacant = runs.filter(|run| run[0].usage.is_vacant());
        let vacant = vacant
            .map(|run| VirtRange::between(run[0].range.start, run[run.len() - 1].range.end()));
        vacant.filter(|run| run.len >= len).flat_map(&mut allowed).find_map(|part| {
            let start = round_up(part.start, align)?;
            let found = VirtRange::new(start, len);
            part.covers(found).then_some(found)
        })
    }

    /// True if nothing of `range` is in use, in the arena's file.
    pub(crate) fn is_unused(&self, range: VirtRange) -> bool {
        self.within(range).all(|span| span.usage != Usage::Used)
            && self.left_within(range).next().is_none()
    }

    /// The parts of `range` that are handed out, each as long as possible, whatever their protection.
    pub(crate) fn used_within(&self, range: VirtRange) -> Vec<VirtRange> {
        let mut used: Vec<VirtRange> = Vec::new();
        for span in self.within(range).filter(|span| span.usage.is_used()) {
            match used.last_mut() {
                Some(last) if last.end() == span.range.start => last.len += span.range.len,
                _ => used.push(span.range),
            }
        }
        used
    }

    /// True if faults at `address` give base pages.
    pub(crate) fn is_base(&self, address: usize) -> bool {
        self.base_chunks.contains(self.chunk_at(address))
    }

    /// The chunk that `address` lies in.
    pub(crate) fn chunk_at(&self, address: usize) -> usize {
        (address - self.start) / CHUNK_BYTES
    }

    /// The address that a chunk begins at.
    pub(crate) fn chunk_start(&self, chunk: usize) -> usize {
        self.start + chunk * CHUNK_BYTES
    }

    /// The first chunk that `range` touches, and the one after the last; `None` if it is empty.
    pub(crate) fn chunks_of(&self, range: VirtRange) -> Option<(usize, usize)> {
        let end = (range.end() - self.start).div_ceil(CHUNK_BYTES);
        (!range.is_empty()).then(|| (self.chunk_at(range.start), end))
    }

    /// The mappings that `range` consists of: parts of one protection and one size of pages, without those that are not the
    /// arena's.
    pub(crate) fn pieces(&self, range: VirtRange) -> Vec<(VirtRange, Prot)> {
        let mut pieces: Vec<(VirtRange, Prot)> = Vec::new();
        let is_ours = |span: &Span| matches!(span.usage, Usage::Free | Usage::Used);
        for span in self.within(range).filter(is_ours) {
            match pieces.last_mut() {
                Some((piece, prot)) if *prot == span.prot && piece.end() == span.range.start => {
                    piece.len += span.range.len;
                }
                _ => pieces.push((span.range, span.prot)),
            }
        }
        match self.base_chunks.is_empty() {
            true => pieces,
            false => pieces.into_iter().flat_map(|piece| self.by_page_size(piece)).collect(),
        }
    }

    fn by_page_size(&self, piece: (VirtRange, Prot)) -> impl Iterator<Item = (VirtRange, Prot)> {
        let (mut rest, prot) = piece;
        std::iter::from_fn(move || {
            let (first, end) = self.chunks_of(rest)?;
            let end = self.chunk_start(self.base_chunks.run_end(first, end));
            let part = VirtRange::between(rest.start, end.min(rest.end()));
            rest = VirtRange::between(part.end(), rest.end());
            Some((part, prot))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(vma_map: &VmaMap) -> Vec<(usize, usize, Usage)> {
        vma_map.spans.iter().map(|s| (s.range.start, s.range.end(), s.usage)).collect()
    }

    #[test]
    fn spans_split_and_merge() {
        let mut vma_map = VmaMap::new(VirtRange::between(0, 100));
        vma_map.set(VirtRange::between(10, 20), Usage::Used, Prot::RW);
        vma_map.set(VirtRange::between(20, 30), Usage::Used, Prot::RW);
        assert_eq!(
            whole(&vma_map),
            [(0, 10, Usage::Free), (10, 30, Usage::Used), (30, 100, Usage::Free)]
        );
        vma_map.set(VirtRange::between(15, 18), Usage::Used, Prot::READ);
        assert_eq!(vma_map.pieces(VirtRange::between(12, 40)).len(), 4);
        vma_map.set(VirtRange::between(0, 100), Usage::Free, Prot::NONE);
        assert_eq!(whole(&vma_map), [(0, 100, Usage::Free)]);
    }

    #[test]
    fn chunks_of_base_pages_are_mappings_of_their_own() {
        let at = |i| 8 * CHUNK_BYTES + i * CHUNK_BYTES / 2;
        let mut vma_map = VmaMap::new(VirtRange::between(at(0), at(20)));
        vma_map.base_chunks.set(2..5, true);
        vma_map.set(VirtRange::between(at(7), at(13)), Usage::Used, Prot::RW);
        let pieces = vma_map.pieces(VirtRange::between(at(1), at(17)));
        let cuts: Vec<_> = pieces.iter().map(|(piece, prot)| (piece.end(), *prot)).collect();
        let (none, used) = (Prot::NONE, Prot::RW);
        assert_eq!(
            cuts,
            [4, 7, 10, 13, 17]
                .map(at)
                .into_iter()
                .zip([none, none, used, used, none])
                .collect::<Vec<_>>()
        );
        assert_eq!(pieces[0].0.start, at(1));
    }

    #[test]
    fn any_sequence_keeps_the_cover_whole() {
        let mut vma_map = VmaMap::new(VirtRange::between(0, 64));
        let mut model = [Usage::Free; 64];
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..5000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let start = (x >> 8) as usize % 64;
            let end = start + 1 + (x >> 20) as usize % (64 - start);
            let usage =
                [Usage::Free, Usage::Used, Usage::Foreign, Usage::Hole][(x >> 40) as usize % 4];
            vma_map.set(VirtRange::between(start, end), usage, Prot::NONE);
            model[start..end].fill(usage);
            let spans = whole(&vma_map);
            assert!(spans.windows(2).all(|w| w[0].1 == w[1].0 && w[0].2 != w[1].2), "{spans:?}");
            for (start, end, usage) in spans {
                assert!(model[start..end].iter().all(|&m| m == usage));
            }
        }
    }
}

//! The parts of the arena that a template has, and how its clones inherit each.

use std::mem::size_of;

use bytemuck::Pod;
use cowslip_sys::memory::Prot;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

/// How a clone inherits a region (compare BSD's `minherit(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Inherit {
    /// The template's content; written pages belong to the clone, until it is reset.
    #[default]
    Copied,
    /// One memory that all clones in all processes share. It begins as a copy of the template's content, and a reset
    /// leaves it unchanged. The arena has no part in it.
    Shared,
    /// Zeroes, and zeroes again after a reset.
    Fresh,
}

/// A part of a template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    pub(super) range: VirtRange,
    pub(super) prot: Prot,
    pub(super) inherit: Inherit,
}

impl Region {
    /// Its addresses in the arena.
    pub fn range(self) -> VirtRange {
        self.range
    }

    /// The accesses that a clone has to it.
    pub fn prot(self) -> Prot {
        self.prot
    }

    /// How a clone inherits it.
    pub fn inherit(self) -> Inherit {
        self.inherit
    }
}

/// The regions of a template, in order and disjoint. Their offsets in its files are those from `origin`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    origin: usize,
    regions: Vec<Region>,
}

impl Layout {
    /// `None` if there are no regions, or they are out of order, overlap, or are not whole pages.
    pub(super) fn new(origin: usize, regions: Vec<Region>) -> Option<Self> {
        let page = page_size_bytes();
        let mut from = origin;
        for Region { range, .. } in &regions {
            let end = range.start.checked_add(range.len)?;
            if range.start < from || range.is_empty() || (range.start | end) & (page - 1) != 0 {
                return None;
            }
            from = end;
        }
        let is_aligned = origin.is_multiple_of(CHUNK_BYTES);
        (is_aligned && !regions.is_empty()).then_some(Self { origin, regions })
    }

    pub(crate) fn origin(&self) -> usize {
        self.origin
    }

    pub(super) fn regions(&self) -> &[Region] {
        &self.regions
    }

    pub(super) fn has(&self, inherit: Inherit) -> bool {
        self.regions.iter().any(|region| region.inherit == inherit)
    }

    /// The whole chunks from the first region to the last.
    pub(super) fn extent(&self) -> VirtRange {
        let (first, last) = (self.regions[0].range, self.regions[self.regions.len() - 1].range);
        VirtRange::between(first.start, last.end()).outer_aligned(CHUNK_BYTES)
    }

    /// The offset at which a region begins in the template's files.
    pub(super) fn offset(&self, region: Region) -> u64 {
        (region.range.start - self.origin) as u64
    }

    /// The length that the template's files must have.
    pub(super) fn file_len(&self) -> u64 {
        (self.extent().end() - self.origin) as u64
    }

    /// Checks that `range` holds values of `T` that a clone may access with `prot`, in regions that are all shared or
    /// all not; returns the number of values.
    ///
    /// # Panics
    /// If a check fails.
    pub(crate) fn check<T: Pod>(&self, range: VirtRange, prot: Prot, shared: bool) -> usize {
        let mut rest = range;
        for region in
            &self.regions[self.regions.partition_point(|r| r.range.end() <= range.start)..]
        {
            if rest.is_empty() || !region.range.contains(rest.start) {
                break;
            }
            assert!(region.prot.contains(prot), "{region:?} does not allow {prot:?}");
            let is_shared = region.inherit == Inherit::Shared;
            assert!(is_shared == shared, "{region:?} is accessed as if it were another kind");
            rest = VirtRange::between(region.range.end(), range.end());
        }
        assert!(rest.is_empty(), "{rest} is not in the template");
        assert!(range.start.is_multiple_of(align_of::<T>()), "{range} is not aligned for its type");
        range.len / size_of::<T>().max(1)
    }

    /// Makes clones inherit `range` in the way of `inherit`.
    pub(super) fn declare(&mut self, declared: VirtRange, inherit: Inherit) {
        let mut regions = Vec::with_capacity(self.regions.len() + 2);
        for region in &self.regions {
            let whole = region.range;
            let inside = whole.intersect(declared);
            if inside.is_empty() {
                regions.push(*region);
                continue;
            }
            let before = VirtRange::between(whole.start, inside.start);
            let after = VirtRange::between(inside.end(), whole.end());
            for (range, inherit) in
                [(before, region.inherit), (inside, inherit), (after, region.inherit)]
            {
                if !range.is_empty() {
                    regions.push(Region { range, inherit, ..*region });
                }
            }
        }
        self.regions = regions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn region(start: usize, end: usize, inherit: Inherit) -> Region {
        Region { range: VirtRange::between(start * MIB, end * MIB), prot: Prot::RW, inherit }
    }

    #[test]
    fn a_declaration_cuts_regions() {
        let all = vec![region(2, 8, Inherit::Copied), region(10, 12, Inherit::Copied)];
        let mut layout = Layout::new(2 * MIB, all).unwrap();
        layout.declare(VirtRange::between(4 * MIB, 5 * MIB), Inherit::Shared);
        layout.declare(VirtRange::between(7 * MIB, 11 * MIB), Inherit::Fresh);
        let expected = [
            region(2, 4, Inherit::Copied),
            region(4, 5, Inherit::Shared),
            region(5, 7, Inherit::Copied),
            region(7, 8, Inherit::Fresh),
            region(10, 11, Inherit::Fresh),
            region(11, 12, Inherit::Copied),
        ];
        assert_eq!(layout.regions(), expected);
        assert_eq!(layout.extent(), VirtRange::between(2 * MIB, 12 * MIB));
        assert_eq!(layout.offset(expected[1]), 2 * MIB as u64);
        assert_eq!(
            layout.check::<u64>(VirtRange::between(5 * MIB, 8 * MIB), Prot::RW, false),
            3 * MIB / 8
        );
    }

    #[test]
    fn nonsense_is_no_layout() {
        let copied = |start, end| region(start, end, Inherit::Copied);
        let mut odd = copied(2, 4);
        odd.range.len -= 1;
        let mut endless = copied(2, 4);
        endless.range.len = usize::MAX - 1;
        for (origin, regions) in [
            (2, vec![]),
            (2, vec![copied(0, 4)]),
            (2, vec![copied(4, 6), copied(2, 4)]),
            (2, vec![copied(2, 6), copied(4, 8)]),
            (2, vec![copied(2, 2)]),
            (1, vec![copied(2, 4)]),
            (2, vec![odd]),
            (2, vec![endless]),
        ] {
            assert_eq!(Layout::new(origin * MIB, regions.clone()), None, "{regions:?}");
        }
    }

    #[test]
    #[should_panic(expected = "is not in the template")]
    fn a_gap_is_not_accessed() {
        let all = vec![region(2, 4, Inherit::Copied), region(6, 8, Inherit::Copied)];
        let layout = Layout::new(2 * MIB, all).unwrap();
        layout.check::<u8>(VirtRange::between(3 * MIB, 7 * MIB), Prot::READ, false);
    }
}

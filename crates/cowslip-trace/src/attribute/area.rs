//! The ranges of an address space, kept sorted and cut where mappings change.

use std::ops::{Deref, DerefMut};

use cowslip_sys::units::VirtRange;

use super::history::{MappingHistory, SpanId};
use super::mapping::MappingId;
use crate::parts::{Part, Parts};

/// A part of a mapping, at its own range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub(super) range: VirtRange,
    pub(super) mapping: MappingId,
    /// `None` for a forked child's area before its first fault.
    pub(super) span: Option<SpanId>,
    /// Its offset in the mapping, in bytes.
    pub(super) into_mapping_bytes: u64,
    /// `PROT_` bits.
    pub(super) protection: u32,
    /// True if huge pages were requested with `madvise`, false if refused.
    pub(super) wants_huge: Option<bool>,
    /// The number of losses of events before it was mapped.
    pub(super) losses_before: u32,
}

/// Areas by address; no two overlap.
#[derive(Clone, Default, Debug)]
pub(super) struct Areas(Parts<Area>);

impl Area {
    /// Its part from `start` to `end`.
    fn part(self, start: usize, end: usize) -> Self {
        let into_mapping_bytes = self.into_mapping_bytes + (start - self.range.start) as u64;
        Self { range: VirtRange::between(start, end), into_mapping_bytes, ..self }
    }

    /// The area at another address, up to `end`.
    pub(super) fn moved(self, start: usize, end: usize) -> Self {
        Self { range: VirtRange::between(start, end), ..self }
    }
}

impl Part for Area {
    fn range(&self) -> VirtRange {
        self.range
    }
}

impl Deref for Areas {
    type Target = Parts<Area>;

    fn deref(&self) -> &Parts<Area> {
        &self.0
    }
}

impl DerefMut for Areas {
    fn deref_mut(&mut self) -> &mut Parts<Area> {
        &mut self.0
    }
}

impl Areas {
    /// Takes the areas in `range` out, and cuts those that overlap its ends.
    pub(super) fn take(&mut self, range: VirtRange, history: &mut MappingHistory) -> Vec<Area> {
        self.cut(range.start, history);
        self.cut(range.end(), history);
        let starts: Vec<_> = self.within(range).map(|area| area.range.start).collect();
        starts.into_iter().filter_map(|start| self.remove(start)).collect()
    }

    /// Moves the end of the area at `start`.
    pub(super) fn resize(&mut self, start: usize, end: usize, history: &mut MappingHistory) {
        if let Some(area) = self.at_mut(start) {
            area.range = VirtRange::between(start, end);
            area.span = area.span.map(|span| history.change(span, area.range));
        }
    }

    fn cut(&mut self, at: usize, history: &mut MappingHistory) {
        let Some(area) = self.at(at).filter(|area| area.range.start < at).copied() else { return };
        let mut upper = area.part(at, area.range.end());
        upper.span = area.span.map(|_| history.begin(area.mapping, upper.range));
        self.insert(upper);
        self.resize(area.range.start, at, history);
    }
}

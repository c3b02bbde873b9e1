//! The ranges of an address space, kept sorted and cut where mappings change.

use std::collections::BTreeMap;

use cowslip_sys::units::VirtRange;

use super::history::{MappingHistory, SpanId};
use super::mapping::MappingId;

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
pub(super) struct Areas(BTreeMap<usize, Area>);

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

impl Areas {
    pub(super) fn at(&self, address: usize) -> Option<&Area> {
        let (_, area) = self.0.range(..=address).next_back()?;
        area.range.contains(address).then_some(area)
    }

    pub(super) fn at_mut(&mut self, address: usize) -> Option<&mut Area> {
        let (_, area) = self.0.range_mut(..=address).next_back()?;
        area.range.contains(address).then_some(area)
    }

    /// The first one above `address`.
    pub(super) fn above(&self, address: usize) -> Option<&Area> {
        self.0.range(address..).next().map(|(_, area)| area)
    }

    /// Areas that overlap `range`, in order.
    pub(super) fn within(&self, range: VirtRange) -> impl Iterator<Item = &Area> {
        let first = self.at(range.start).map_or(range.start, |area| area.range.start);
        self.0.range(first..range.end().max(first)).map(|(_, area)| area)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Area> {
        self.0.values()
    }

    /// Inserts an area where there is none.
    pub(super) fn insert(&mut self, area: Area) {
        if !area.range.is_empty() {
            self.0.insert(area.range.start, area);
        }
    }

    /// Takes the areas in `range` out, and cuts those that overlap its ends.
    pub(super) fn take(&mut self, range: VirtRange, history: &mut MappingHistory) -> Vec<Area> {
        self.cut(range.start, history);
        self.cut(range.end(), history);
        let starts: Vec<_> = self.within(range).map(|area| area.range.start).collect();
        starts.iter().filter_map(|start| self.0.remove(start)).collect()
    }

    /// Moves the end of the area at `start`.
    pub(super) fn resize(&mut self, start: usize, end: usize, history: &mut MappingHistory) {
        if let Some(area) = self.0.get_mut(&start) {
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

//! The order in which the pages of mappings come, and how often.

use std::collections::HashMap;

use serde::Serialize;

use crate::attribute::{Attribution, FaultKind, HugeFit, MappingId};

/// Distances that are counted apart; the others only count in the total.
const MOST_STEPS: usize = 64;
/// Walks that are followed at once.
const MOST_WALKS: usize = 1 << 16;

/// The pattern in which the absent pages of some mappings come: of anonymous and shared memory and of files.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Shape {
    /// Faults that brought a page.
    pub arrivals: u64,
    /// Mappings with such faults.
    pub mappings: u64,
    /// The least, the median and the most arrivals in one mapping.
    pub per_mapping: [u64; 3],
    /// Steps from one such fault to the next of the same thread in the same mapping.
    pub steps: u64,
    /// The most frequent step, in pages; negative: towards lower addresses.
    pub step_pages: i64,
    /// The number of steps with that distance.
    pub steps_of_it: u64,
    /// Pages of anonymous or shared memory around which a huge page fits, each the first page in it.
    pub huge_first: u64,
    /// The same, with another page of the huge page already there.
    pub huge_further: u64,
    /// Pages of such memory around which no huge page fits.
    pub huge_unfit: u64,
    /// Pages of such memory for which the program refused huge pages.
    pub huge_refused: u64,
    /// Pages that came as part of a huge page, according to the events.
    pub came_huge: u64,
}

impl Shape {
    /// Arrivals in anonymous or shared memory.
    pub fn fitted(&self) -> u64 {
        self.huge_first + self.huge_further + self.huge_unfit + self.huge_refused
    }

    /// Faults for these pages if huge pages had come wherever they fit.
    pub fn faults_with_huge_pages(&self) -> u64 {
        self.huge_first + self.huge_unfit + self.huge_refused
    }

    /// True if at least nine in ten steps are the most frequent one.
    pub fn is_regular(&self) -> bool {
        self.steps > 0 && self.steps_of_it * 10 >= self.steps * 9
    }
}

/// A shape under construction.
#[derive(Debug, Default)]
pub(super) struct Watch {
    shape: Shape,
    steps: HashMap<i64, u64>,
}

/// The last page of each thread in each mapping.
#[derive(Debug, Default)]
pub(super) struct Walks(HashMap<(u32, MappingId), u64>);

impl Walks {
    /// The distance from the page before, in pages.
    pub(super) fn step(&mut self, tid: u32, mapping: MappingId, page: u64) -> Option<i64> {
        if self.0.len() >= MOST_WALKS {
            self.0.clear();
        }
        let before = self.0.insert((tid, mapping), page)?;
        Some(page.wrapping_sub(before).cast_signed())
    }
}

/// True if the fault brought an absent page.
pub(crate) fn is_arrival(attribution: Attribution) -> bool {
    attribution.fit.is_some()
        || matches!(attribution.kind, FaultKind::FileRead | FaultKind::FileMapped)
}

impl Watch {
    pub(super) fn add(&mut self, fit: Option<HugeFit>, step: Option<i64>, is_huge: bool) {
        let shape = &mut self.shape;
        shape.arrivals += 1;
        shape.came_huge += u64::from(is_huge);
        match fit {
            Some(HugeFit::First) => shape.huge_first += 1,
            Some(HugeFit::Further) => shape.huge_further += 1,
            Some(HugeFit::No) => shape.huge_unfit += 1,
            Some(HugeFit::Refused) => shape.huge_refused += 1,
            None => {}
        }
        if let Some(step) = step {
            shape.steps += 1;
            if self.steps.len() < MOST_STEPS || self.steps.contains_key(&step) {
                *self.steps.entry(step).or_default() += 1;
            }
        }
    }

    /// Completes the shape with the number of pages in each mapping.
    pub(super) fn finish(self, mut per_mapping: Vec<u32>) -> Shape {
        per_mapping.sort_unstable();
        let at = |index: usize| per_mapping.get(index).copied().map_or(0, u64::from);
        let last = per_mapping.len().saturating_sub(1);
        let most = self.steps.into_iter().max_by_key(|(step, count)| (*count, -step.abs()));
        let (step_pages, steps_of_it) = most.unwrap_or_default();
        Shape {
            mappings: per_mapping.len() as u64,
            per_mapping: [at(0), at(last / 2), at(last)],
            step_pages,
            steps_of_it,
            ..self.shape
        }
    }
}

//! A trace summed up: by kind, mapping, stack, thread and time.

mod analyser;
mod frames;
mod rate;
mod shape;

use std::sync::Arc;

use cowslip_sys::procfs::Policy;
use serde::Serialize;

use crate::attribute::{Mapping, Place, Span};
use crate::cost::{Cost, FaultCost};
use crate::model::{Header, Trace};
use crate::thp;

pub use crate::sums::Sums;
pub use analyser::Analyser;
pub use frames::Frame;
pub use rate::Rate;
pub use shape::Shape;
pub(crate) use shape::is_arrival;

/// A trace summed up. Counts are of recorded faults.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The trace's.
    pub header: Header,
    /// From the first event to the last, in nanoseconds.
    pub duration_ns: u64,
    /// Each recorded fault stands for so many.
    pub sampling_period: u64,
    /// Bytes in a base page.
    pub page_bytes: u64,
    /// Events that are missing.
    pub lost: u64,
    /// Processes that were forked.
    pub forks: u64,
    /// Whether a fault lay in memory that is older than the trace: it does not show the whole run.
    pub has_past: bool,
    /// What faults take that do not say so themselves, if that is known.
    pub cost: Option<FaultCost>,
    /// Over all faults.
    pub sums: Sums,
    /// All mappings; [`MappingId`](crate::attribute::MappingId) is the place in here.
    pub mappings: Vec<Mapping>,
    /// Where they lay and when, in the order in which they began.
    pub spans: Vec<Span>,
    /// By mapping: the place of its group in `groups`.
    pub group_of: Vec<u32>,
    /// Mappings of the same identity together, those with the most faults first.
    pub groups: Vec<Group>,
    /// Call stacks of faults, those with the most faults first.
    pub stacks: Vec<StackSums>,
    /// Threads with faults, those with the most first.
    pub threads: Vec<ThreadSums>,
    /// Faults over time.
    pub rate: Rate,
}

/// What a mapping is wherever it lies, so that those of two runs can be set side by side.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct MappingIdentity {
    /// What it is of.
    pub place: Place,
    /// How long it is, up to the next power of two; `None` where length tells nothing (files, heap, stack).
    pub size_bytes: Option<u64>,
    /// Who mapped it, the innermost frame first; empty if that is not known.
    pub mapped_by: Arc<[Frame]>,
}

/// Mappings of one identity.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// What they are.
    pub identity: MappingIdentity,
    /// How many there are.
    pub mappings: u64,
    /// Their lengths together, in bytes.
    pub mapped_bytes: u64,
    /// How much was unmapped again, in bytes; more than `mapped_bytes` if it grew again.
    pub unmapped_bytes: u64,
    /// Calls of `madvise(MADV_HUGEPAGE)` that began in one of them.
    pub huge_advice: u64,
    /// How their pages come.
    pub shape: Shape,
    /// Over their faults.
    #[serde(flatten)]
    pub sums: Sums,
}

/// The faults of one call stack.
#[derive(Clone, Debug, Serialize)]
pub struct StackSums {
    /// The innermost frame first.
    pub frames: Arc<[Frame]>,
    /// Over its faults.
    #[serde(flatten)]
    pub sums: Sums,
}

/// The faults of one thread.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadSums {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its last name; empty if that is not known.
    pub name: Arc<str>,
    /// Over its faults.
    #[serde(flatten)]
    pub sums: Sums,
}

impl MappingIdentity {
    /// Whether they are arenas of Cowslip's: by their name, or because its library mapped them.
    pub fn is_arena(&self) -> bool {
        let is_ours = |module: &Arc<str>| module.contains("/libcowslip_preload");
        self.place == Place::Arena
            || self.mapped_by.iter().filter_map(|frame| frame.module.as_ref()).any(is_ours)
    }
}

impl Analysis {
    /// Sums up a trace; `cost` says what faults take that do not say so themselves.
    ///
    /// ```
    /// use cowslip_trace::Analysis;
    /// use cowslip_trace::attribute::FaultKind;
    /// use cowslip_trace::model::{Event, Fault, Trace, EventKind};
    /// let what = EventKind::Fault(Fault::at(0x20_0000, 0x40_1000));
    /// let events = vec![Event { time_ns: 5, pid: 7, tid: 7, what }];
    /// let analysis = Analysis::of(&Trace { events, ..Trace::default() }, None);
    /// assert_eq!(analysis.sums.of(FaultKind::Unknown), 1, "nothing was mapped there");
    /// ```
    pub fn of(trace: &Trace, cost: Option<FaultCost>) -> Self {
        let mut analyser = Analyser::new(&trace.header);
        for event in &trace.events {
            analyser.observe(event, |stack| trace.frames(stack));
        }
        analyser.finish(cost)
    }

    /// So many faults for `recorded` ones.
    pub fn scaled(&self, recorded: u64) -> u64 {
        recorded.saturating_mul(self.sampling_period)
    }

    /// Whether what its faults took may be more: huge pages may have come, and the faults do not say.
    pub fn cost_is_a_bound(&self) -> bool {
        let policy = thp::policy(&self.header.machine);
        self.sums.timed == 0 && self.sums.huge == 0 && policy != Some(Policy::Never)
    }

    /// What some of its faults took, if that is known.
    pub fn cost_of(&self, sums: &Sums) -> Option<Cost> {
        Cost::of(sums, self.cost.as_ref(), self.sampling_period)
    }
}

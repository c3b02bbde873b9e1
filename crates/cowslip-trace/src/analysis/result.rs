//! The sums of a trace.

use std::sync::Arc;

use cowslip_sys::procfs::Policy;
use serde::Serialize;

use super::{Frame, Rate, Shape};
use crate::attribute::{Mapping, Place, Span};
use crate::cost::{Cost, FaultCost};
use crate::model::Header;
use crate::sums::Sums;
use crate::thp;

/// A trace summed up. Counts are of recorded faults.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The trace's header.
    pub header: Header,
    /// From the first event to the last, in nanoseconds.
    pub duration_ns: u64,
    /// The number of faults that each recorded one stands for.
    pub sampling_period: u64,
    /// Bytes in a base page.
    pub page_bytes: u64,
    /// Events that are missing.
    pub lost: u64,
    /// Processes that were forked.
    pub forks: u64,
    /// True if a fault lay in memory older than the trace, which then does not show the whole run.
    pub has_past: bool,
    /// The cost of faults that were not timed, if known.
    pub cost: Option<FaultCost>,
    /// Sums of all faults.
    pub sums: Sums,
    /// All mappings; [`MappingId`](crate::attribute::MappingId) is the index in this vector.
    pub mappings: Vec<Mapping>,
    /// Their places and times, in the order in which they began.
    pub spans: Vec<Span>,
    /// By mapping: the index of its group in `groups`.
    pub group_of: Vec<u32>,
    /// Groups of mappings with the same identity, those with the most faults first.
    pub groups: Vec<Group>,
    /// Call stacks of faults, those with the most faults first.
    pub stacks: Vec<StackSums>,
    /// Threads with faults, those with the most faults first.
    pub threads: Vec<ThreadSums>,
    /// Faults over time.
    pub rate: Rate,
}

/// The identity of a mapping regardless of its address, by which two runs can be compared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct MappingIdentity {
    /// The kind of its memory.
    pub place: Place,
    /// Its length, rounded up to a power of two; `None` where the length means nothing (files, heap, stack).
    pub size_bytes: Option<u64>,
    /// The call stack that mapped it, the innermost frame first; empty if unknown.
    pub mapped_by: Arc<[Frame]>,
}

/// Mappings of one identity.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// Their identity.
    pub identity: MappingIdentity,
    /// The number of mappings.
    pub mappings: u64,
    /// The sum of their lengths, in bytes.
    pub mapped_bytes: u64,
    /// Bytes that were unmapped again; more than `mapped_bytes` if it grew again.
    pub unmapped_bytes: u64,
    /// Calls of `madvise(MADV_HUGEPAGE)` that began in one of them.
    pub huge_advice: u64,
    /// The pattern in which their pages come.
    pub shape: Shape,
    /// Sums of their faults.
    #[serde(flatten)]
    pub sums: Sums,
}

/// The faults of one call stack.
#[derive(Clone, Debug, Serialize)]
pub struct StackSums {
    /// The innermost frame first.
    pub frames: Arc<[Frame]>,
    /// Sums of its faults.
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
    /// Its last name; empty if unknown.
    pub name: Arc<str>,
    /// Sums of its faults.
    #[serde(flatten)]
    pub sums: Sums,
}

impl MappingIdentity {
    /// True if they are arenas of Cowslip's: by their name, or because its library mapped them.
    pub fn is_arena(&self) -> bool {
        let is_ours = |module: &Arc<str>| module.contains("/libcowslip_preload");
        self.place == Place::Arena
            || self.mapped_by.iter().filter_map(|frame| frame.module.as_ref()).any(is_ours)
    }
}

impl Analysis {
    /// The number of faults that `recorded` ones stand for.
    pub fn scaled(&self, recorded: u64) -> u64 {
        recorded.saturating_mul(self.sampling_period)
    }

    /// True if the cost of its faults is an upper bound: huge pages may have come unnoticed.
    pub fn cost_is_a_bound(&self) -> bool {
        let policy = thp::policy(&self.header.machine);
        self.sums.timed == 0 && self.sums.huge == 0 && policy != Some(Policy::Never)
    }

    /// The time that some of its faults took, if known.
    pub fn cost_of(&self, sums: &Sums) -> Option<Cost> {
        Cost::from_sums(sums, self.cost.as_ref(), self.sampling_period)
    }
}

//! What the faults of a trace have in common, in words, with the evidence, the cost and what to do.

use serde::Serialize;

use crate::analysis::Identity;

/// Something that many faults have in common.
#[derive(Clone, Debug, Serialize)]
pub struct Pattern {
    /// What it is.
    pub name: PatternName,
    /// The mappings in which it is; `None`: it is not of one kind of mapping.
    pub identity: Option<Identity>,
    /// A sentence: what, how often, where, and what it costs.
    pub sentence: String,
    /// What to do about it, if the events give a reason to.
    pub advice: Option<String>,
    /// Recorded faults of it.
    pub faults: u64,
    /// Faults that huge pages would have taken in their stead, computed from their addresses.
    pub faults_with_huge_pages: Option<u64>,
    /// What they took, in nanoseconds.
    pub cost_ns: f64,
}

/// The patterns that are told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PatternName {
    /// Neighbouring base pages one after the other.
    Staircase,
    /// A fault or so a mapping.
    OncePerMap,
    /// The same memory is mapped and unmapped over and over.
    Churn,
    /// Memory is given back with `madvise` and touched again.
    Purging,
    /// Writes after a fork copy pages.
    CowStorm,
    /// A file is read from its device through a mapping.
    ColdFile,
    /// A stack grows.
    StackGrowth,
    /// Huge pages would fit, and were not given.
    NotHuge,
    /// Huge pages do not fit: too short, or not aligned.
    Misaligned,
    /// The kernel takes the faults, in copies to and from user memory.
    KernelCopies,
}

//! What is done to regions, and what came of it.

use serde::{Deserialize, Serialize};

use super::ProcessId;

/// What is done to a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Make it one huge page.
    Promote,
    /// Split its huge page.
    Demote,
}

/// Whether an action was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It was.
    Done,
    /// The kernel refused with this error number.
    Refused(i32),
    /// The region was no longer what it had been when that was decided: shared with a new child, released,
    /// or huge already. The kernel was not asked.
    Overtaken,
}

/// What came of an action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ActionOutcome {
    /// Whose region.
    pub process: ProcessId,
    /// Which region.
    pub address: u64,
    /// What was tried.
    pub action: Action,
    /// When it was over, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// How long the kernel took, and may have held up the process.
    pub took_ns: u64,
    /// Processor time of ours that went into it, and into what it needed.
    #[serde(default)]
    pub cpu_ns: u64,
    /// Whether it was done.
    pub effect: Effect,
    /// Pages that were given back, if it was split.
    #[serde(default)]
    pub freed_pages: u16,
}

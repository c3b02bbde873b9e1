//! Actions on regions, and their outcomes.

use cowslip_sys::{Errno, target::Refusal};
use serde::{Deserialize, Serialize};

use super::ProcessId;

/// An action on a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Make it one huge page.
    Promote,
    /// Split its huge page.
    Demote,
}

/// The effect of an action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It was done.
    Done,
    /// The kernel refused with this error number.
    Refused(i32),
    /// The region had changed since the decision: it is shared with a new child, released, or huge already.
    /// The kernel was not asked.
    Overtaken,
}

impl Effect {
    /// True if the kernel found no huge page.
    pub(crate) fn lacks_huge_page(self) -> bool {
        matches!(self, Self::Refused(errno)
            if Refusal::from_errno(Errno::from_raw_os_error(errno)) == Refusal::SlowDown)
    }
}

/// The outcome of an action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ActionOutcome {
    /// The process that owns the region.
    pub process: ProcessId,
    /// The region's address.
    pub address: u64,
    /// The action that was tried.
    pub action: Action,
    /// The time at which it ended, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The time that the kernel took, and may have held up the process.
    pub took_ns: u64,
    /// Our own processor time for it and its preparation.
    #[serde(default)]
    pub cpu_ns: u64,
    /// Its effect.
    pub effect: Effect,
    /// Pages that a split gave back.
    #[serde(default)]
    pub freed_pages: u16,
}

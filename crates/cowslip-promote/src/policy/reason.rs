//! Reasons to promote, split or leave a region.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{Action, ProcessId};

/// The reason for a decision. Each has one name, which stays the same between versions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It is as full as the threshold requires: promoted.
    Full,
    /// It is huge and nearly empty: split.
    Sparse,
    /// It was huge, part of it was released, and the kernel may still hold that part: split.
    PartiallyMapped,
    /// It is huge, and another target or region has a greater claim to a huge page, of which none is free: split.
    TakenBack,
    /// It is huge, and not known to be nearly empty.
    Huge,
    /// It is huge and nearly empty, and it may be filling up.
    Filling,
    /// Not enough of its pages are in use.
    BelowThreshold,
    /// Enough of its pages are in memory, but too few are in use without the lazily freed ones.
    LazilyFreed,
    /// Another process maps pages of it: a promotion would copy them.
    Shared,
    /// Pages of it are merged with equal ones (KSM), and it is not known to be in use: a promotion would copy them.
    Merged,
    /// It is shared memory, or text, that a target before this one maps too, and is promoted there.
    Elsewhere,
    /// It is part of an arena that is frozen, being thawed or being restored.
    Frozen,
    /// It is huge and nearly empty, and this kernel keeps the memory of huge pages that are split.
    NotFreed,
    /// Pages of it were released a short while ago.
    JustReleased,
    /// It is full, and seen for the first time: it may not stay full.
    FirstLook,
    /// Too many of its pages are in swap.
    Swapped,
    /// Its process disabled huge pages for itself.
    Disabled,
    /// The gain of its process is still to be measured.
    Unmeasured,
    /// A measurement showed no gain for its process.
    NoGain,
    /// The kernel was busy, and is asked again later.
    RetryLater,
    /// The kernel cannot make it huge.
    GivenUp,
    /// A promotion in this process was slow or failed: the process is left alone for a while.
    BackingOff,
    /// Promotions have held up its process for as long as they may.
    StallBudget,
    /// Promotions have taken as much processor time as they may.
    CpuBudget,
    /// Programs wait for memory, on the machine or in the control group.
    Pressure,
    /// Too little memory is available.
    MemoryLow,
    /// Its control group, or an ancestor of it, is too near its memory limit.
    LimitNear,
    /// Free memory is in pieces.
    Fragmented,
    /// The available huge pages go to processes with less than their share.
    FairShare,
}

impl Reason {
    /// The action for this reason.
    pub fn action(self) -> Option<Action> {
        match self {
            Self::Full => Some(Action::Promote),
            Self::Sparse | Self::PartiallyMapped | Self::TakenBack => Some(Action::Demote),
            _ => None,
        }
    }

    /// A description for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Full => "promoted: it is as full as the threshold asks for",
            Self::Sparse => "split: it is huge, and hardly any of its pages hold anything",
            Self::PartiallyMapped => {
                "split: it was huge, part of it was released, and the kernel may hold that part still"
            }
            Self::TakenBack => {
                "split: it is huge, and a target or region with a greater claim finds no huge page"
            }
            Self::Huge => "left: it is huge, and not known to be nearly empty",
            Self::Filling => "left: it is huge and nearly empty, and may be filling up",
            Self::BelowThreshold => "left: not enough of its pages are in use",
            Self::LazilyFreed => {
                "left: the program has given back pages of it, or may have, which the kernel has not \
                 taken yet (MADV_FREE), and not enough of the others are in use"
            }
            Self::Shared => {
                "left: another process shares pages of it, as a child that saves does, and a \
                 promotion would copy them"
            }
            Self::Merged => {
                "left: pages of it are merged with equal ones (KSM), and it is not known to be in use; a promotion would \
                 copy them"
            }
            Self::Elsewhere => {
                "left: another target maps the same part of the file, and is promoted first"
            }
            Self::Frozen => {
                "left: its arena is frozen, being thawed or being restored, and gets its huge \
                 pages back by that"
            }
            Self::NotFreed => {
                "left: it is huge and nearly empty, and this kernel keeps the memory of huge pages \
                 that are split (Linux 6.12 frees it)"
            }
            Self::JustReleased => "left: pages of it were released a short while ago",
            Self::FirstLook => "left: it is seen for the first time, and may not stay full",
            Self::Swapped => "left: too many of its pages are in swap",
            Self::Disabled => {
                "left: the process disabled huge pages for itself (prctl PR_SET_THP_DISABLE)"
            }
            Self::Unmeasured => "left: the gain of its process is still to be measured",
            Self::NoGain => "left: a measurement showed no gain for its process",
            Self::RetryLater => "left: the kernel was busy with a page of it, and is asked again",
            Self::GivenUp => {
                "left: the kernel cannot make it huge (MADV_NOHUGEPAGE, userfaultfd, a mapping \
                 that ends inside it)"
            }
            Self::BackingOff => {
                "left: a promotion in this process was slow or found no huge page, and it gets \
                 time to recover"
            }
            Self::StallBudget => "left: promotions have held up the process as long as they may",
            Self::CpuBudget => "left: promotions have taken as much processor time as they may",
            Self::Pressure => "left: programs wait for memory",
            Self::MemoryLow => "left: too little memory is available",
            Self::LimitNear => "left: its control group is too near its memory limit",
            Self::Fragmented => "left: free memory is in pieces smaller than a huge page",
            Self::FairShare => "left: what there is goes to processes with less than their share",
        }
    }
}

impl fmt::Display for Reason {
    /// Its name, as in records.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The decision about one region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// The process that owns the region.
    pub process: ProcessId,
    /// The region's address.
    pub address: u64,
    /// Its pages in use then: a region with fewer by now is not promoted.
    pub pages: u16,
    /// The reason, which implies the action.
    pub reason: Reason,
}

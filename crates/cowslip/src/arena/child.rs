//! Children that give way to the program and still get their share of a processor.
//!
//! Processor time that a program leaves is mostly enough for a child that saves, and to the kernel a processor that
//! runs nothing but idle threads is free for any thread that wakes up. On a machine that is busy throughout there may
//! be nothing left, for ever. The service thread therefore looks at a child's processor time since its fork:
//!
//! ```text
//!               has had less than its share
//!        idle ──────────────────────────────▶ ordinary
//!          ▲                                     │
//!          └──────────── has had it ─────────────┘
//! ```
//! A child is ordinary at first, and stays so if its parent ends before the first look, as a daemon's does.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::{process, scheduling};

use crate::freeze::Frozen;
use crate::metrics::Counters;
use crate::plan::settings::children::LOOK_NS;
use crate::timing::Stopwatch;

pub(super) const NONE: u8 = 0;

/// The least share of a processor, in percent, for children of an arena's program.
#[derive(Debug, Default)]
pub(crate) struct Share(pub(super) AtomicU8);

/// A child that is watched.
#[derive(Debug)]
pub(crate) struct Child {
    pub(super) pid: i32,
    /// Readable when it has ended.
    pub(crate) end: Option<ReservedFd>,
    pub(super) yielding: Option<Yielding>,
    /// Kept until it has ended.
    pub(super) view: Option<Frozen>,
}

#[derive(Debug)]
pub(super) struct Yielding {
    pub(super) share_percent: u8,
    pub(super) since_fork: Stopwatch,
    pub(super) is_idle: AtomicBool,
}

impl Child {
    /// True if it is looked at now and then.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.yielding.is_some()
    }

    /// Asks the kernel whether it has ended, where nothing else reports it.
    pub(crate) fn has_ended(&self) -> bool {
        !process::is_running_child(self.pid)
    }

    /// Lets it run like its parent, or only while a processor is idle, by the time that it has had. True if there is a
    /// reason to go on watching it.
    pub(crate) fn set_turn(&self, counters: &Counters) -> bool {
        let Some(yielding) = &self.yielding else { return true };
        let passed_ns = yielding.since_fork.elapsed_ns();
        if passed_ns < LOOK_NS {
            return true;
        }
        // Its pid is its own until it is waited for; then it may be another process'.
        if self.has_ended() {
            return false;
        }
        let Ok(used_ns) = process::cpu_ns_of(self.pid) else { return true };
        let idle = has_had_share(used_ns, passed_ns, yielding.share_percent);
        if yielding.is_idle.load(Relaxed) != idle && scheduling::set_idle(self.pid, idle).is_ok() {
            yielding.is_idle.store(idle, Relaxed);
            counters.child_turns.fetch_add(1, Relaxed);
        }
        true
    }
}

fn has_had_share(used_ns: u64, passed_ns: u64, share_percent: u8) -> bool {
    u128::from(used_ns) * 100 >= u128::from(passed_ns) * u128::from(share_percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_time_since_the_fork() {
        let second_ns = 1_000_000_000;
        assert!(has_had_share(second_ns / 4, second_ns, 25));
        assert!(!has_had_share(second_ns / 4 - 1, second_ns, 25));
        assert!(has_had_share(2 * second_ns, second_ns, 100), "two threads");
        assert!(!has_had_share(u64::MAX / 100, u64::MAX, 2), "centuries");
    }
}

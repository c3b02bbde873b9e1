//! The clock, for waits and for metrics. A decision has the time as a fact ([`crate::thaw::observe`]).
//!
//! Times are those of `CLOCK_MONOTONIC` (`clock_gettime(2)`), in nanoseconds.

use std::time::Duration;

use cowslip_sys::process;

/// A time until which to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(u64);

impl Deadline {
    pub(crate) fn after_ns(ns: u64) -> Self {
        Self(process::now_ns().saturating_add(ns))
    }

    pub(crate) fn has_passed(self) -> bool {
        process::now_ns() >= self.0
    }

    pub(crate) fn left(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(process::now_ns()))
    }
}

/// The time that work takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    began_ns: u64,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self::started_at(process::now_ns())
    }

    pub(crate) const fn started_at(began_ns: u64) -> Self {
        Self { began_ns }
    }

    pub(crate) fn elapsed_ns(self) -> u64 {
        process::now_ns().saturating_sub(self.began_ns)
    }

    pub(crate) const fn began_ns(self) -> u64 {
        self.began_ns
    }
}

//! A budget of time: a percentage of the time that passes, some of which can be saved up.

use crate::model::Settings;

/// The time over which it can be saved up.
const MOST_SAVED_NS: u64 = 5_000_000_000;

/// The time left in the budget, and the expected cost of an action.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Budget {
    /// Negative if too much was spent.
    left_ns: i64,
    passed_at_ns: u64,
    each_ns: u64,
}

impl Budget {
    /// Begins with the allowance of one interval.
    pub(super) fn new(percent: f64, guess_ns: u64, now_ns: u64, settings: &Settings) -> Self {
        let left_ns = part(settings.interval_ms * 1_000_000, percent);
        Self { left_ns, passed_at_ns: now_ns, each_ns: guess_ns }
    }

    /// Adds the allowance of the time that has passed.
    pub(super) fn pass(&mut self, percent: f64, now_ns: u64, settings: &Settings) {
        let passed_ns = now_ns.saturating_sub(self.passed_at_ns);
        let most = part(MOST_SAVED_NS.max(settings.interval_ms * 1_000_000), percent);
        self.left_ns = (self.left_ns + part(passed_ns, percent)).min(most);
        self.passed_at_ns = now_ns;
    }

    pub(super) fn spend(&mut self, ns: u64) {
        self.left_ns -= i64::try_from(ns).unwrap_or(i64::MAX);
    }

    /// Takes in the duration of an action: the next ones are expected to be like those before.
    pub(super) fn learn(&mut self, ns: u64) {
        self.each_ns = (self.each_ns * 7 + ns) / 8;
    }

    /// The number of actions that it allows now.
    pub(super) fn actions(&self) -> u64 {
        u64::try_from(self.left_ns).unwrap_or(0) / self.each_ns.max(1)
    }
}

fn part(ns: u64, percent: f64) -> i64 {
    (ns as f64 * percent / 100.0) as i64
}

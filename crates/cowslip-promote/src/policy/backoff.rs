//! Backoff: waits that double each time.

use crate::model::Settings;

/// The end of the current wait, and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Backoff {
    until_ns: u64,
    wait_ns: u64,
}

impl Backoff {
    pub(super) fn is_waiting(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    pub(super) fn until_ns(&self) -> u64 {
        self.until_ns
    }

    /// Waits from now on, twice as long as last time. Does nothing during a wait: the action was under way
    /// before.
    pub(super) fn grow(&mut self, now_ns: u64, settings: &Settings) {
        if self.is_waiting(now_ns) {
            return;
        }
        let (least, most) =
            (settings.backoff_min_ms * 1_000_000, settings.backoff_max_ms * 1_000_000);
        self.wait_ns = (self.wait_ns * 2).clamp(least, most);
        self.until_ns = now_ns + self.wait_ns;
    }

    /// Waits for the longest time from now on.
    pub(super) fn exhaust(&mut self, now_ns: u64, settings: &Settings) {
        self.wait_ns = settings.backoff_max_ms * 1_000_000;
        self.until_ns = now_ns + self.wait_ns;
    }

    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_begin_anew_after_success() {
        let settings = Settings { backoff_min_ms: 1, backoff_max_ms: 5, ..Settings::default() };
        let (mut backoff, mut now_ns, mut waits) = (Backoff::default(), 7, Vec::new());
        for _ in 0..5 {
            backoff.grow(now_ns, &settings);
            backoff.grow(now_ns, &settings);
            waits.push((backoff.until_ns - now_ns) / 1_000_000);
            assert!(backoff.is_waiting(now_ns));
            now_ns = backoff.until_ns;
            assert!(!backoff.is_waiting(now_ns));
        }
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        backoff.grow(now_ns, &settings);
        backoff.reset();
        assert!(!backoff.is_waiting(now_ns));
    }
}

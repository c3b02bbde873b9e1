//! Turns of work that is repeated.
//!
//! ```text
//!   due ──▶ done ──────────────────▶ rests for a multiple of the time it took ──▶ due
//!    ▲        └─ found nothing, or failed ──▶ waits twice as long as last time ────┘
//! ```

use std::time::Duration;

use super::settings::Delays;
use super::settings::serve::{LONGEST_REST_NS, LONGEST_TURN_NS, REST_WHEN_CROWDED, REST_WHEN_FELT};

/// The rest of the service thread after work in which it had a turn of `turn_ns`, and for which writers waited `felt_ns` long.
pub(crate) fn rest(turn_ns: u64, felt_ns: u64) -> Duration {
    let turn_ns = turn_ns.min(LONGEST_TURN_NS) * REST_WHEN_CROWDED;
    Duration::from_nanos(turn_ns.max(felt_ns * REST_WHEN_FELT).min(LONGEST_REST_NS))
}

/// The next time of a piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Turn {
    /// 0 if it never was due.
    not_before_ns: u64,
    /// 0 if it last succeeded.
    delay_ns: u64,
}

impl Turn {
    /// Time until it is due; 0 if it is.
    pub(crate) fn left_ns(self, now_ns: u64) -> u64 {
        self.not_before_ns.saturating_sub(now_ns)
    }

    /// The time that it is due at.
    pub(crate) fn not_before_ns(self) -> u64 {
        self.not_before_ns
    }

    pub(crate) fn is_due(self, now_ns: u64) -> bool {
        self.left_ns(now_ns) == 0
    }

    /// True if it has no time: it never was due, or [hurries](Self::hurry).
    pub(crate) fn is_new(self) -> bool {
        self.not_before_ns == 0
    }

    /// True if it failed or found nothing the last time.
    pub(crate) fn is_delayed(self) -> bool {
        self.delay_ns > 0
    }

    /// Makes it due at a time.
    pub(crate) fn set(&mut self, not_before_ns: u64) {
        self.not_before_ns = not_before_ns;
    }

    /// Makes it due at once.
    pub(crate) fn hurry(&mut self) {
        *self = Self::default();
    }

    /// Makes it due at a time, or as soon as it is already. The next delay is the first one.
    pub(crate) fn bring_forward(&mut self, not_before_ns: u64) {
        let is_sooner = !self.is_new() && self.not_before_ns < not_before_ns;
        let not_before_ns = if is_sooner { self.not_before_ns } else { not_before_ns };
        *self = Self { not_before_ns, delay_ns: 0 };
    }

    /// Notes a success: the next delay is the first one.
    pub(crate) fn succeed(&mut self) {
        self.delay_ns = 0;
    }

    /// Doubles the delay, and returns it. The turn stays.
    pub(crate) fn double(&mut self, delays: Delays) -> u64 {
        self.delay_ns = (self.delay_ns * 2).clamp(delays.first_ns, delays.last_ns);
        self.delay_ns
    }

    /// Puts the turn off, for twice as long as the last time. Returns the delay.
    pub(crate) fn put_off(&mut self, now_ns: u64, delays: Delays) -> u64 {
        let delay_ns = self.double(delays);
        self.set(now_ns + delay_ns);
        delay_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_thread_rests_for_threads_that_wait_for_it_or_for_a_processor() {
        let ns = |turn_ns, felt_ns| rest(turn_ns, felt_ns).as_nanos() as u64;
        assert_eq!((ns(0, 0), ns(200_000, 0)), (0, 200_000 * REST_WHEN_CROWDED));
        assert_eq!((ns(0, 100_000), ns(200_000, 100_000)), (9_900_000, 9_900_000));
        // It may have waited for its own turn meanwhile.
        assert_eq!(ns(u64::MAX, 0), LONGEST_TURN_NS * REST_WHEN_CROWDED);
        assert_eq!(ns(0, u64::MAX / 100), LONGEST_REST_NS);
    }

    const DELAYS: Delays = Delays::new(10, 60);

    #[test]
    fn delays_double_up_to_the_last_and_begin_anew_after_a_success() {
        let mut turn = Turn::default();
        assert!(turn.is_due(0) && turn.is_new() && !turn.is_delayed());
        assert_eq!([(); 4].map(|()| turn.put_off(1000, DELAYS)), [10, 20, 40, 60]);
        assert!(turn.is_delayed() && !turn.is_due(1059) && turn.is_due(1060));
        turn.succeed();
        assert_eq!(turn.left_ns(1050), 10, "a success changes the next delay alone");
        assert_eq!(turn.double(DELAYS), 10);
        turn.hurry();
        assert_eq!(turn, Turn::default());
    }

    #[test]
    fn a_turn_that_is_brought_forward_again_and_again_comes() {
        let mut turn = Turn::default();
        assert_eq!(
            [0, 5, 9].map(|now_ns| {
                turn.bring_forward(now_ns + 10);
                turn.left_ns(now_ns)
            }),
            [10, 5, 1]
        );
        turn.set(100);
        turn.bring_forward(20);
        assert_eq!(turn.left_ns(0), 20);
    }
}

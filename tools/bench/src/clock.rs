//! The time that a bench may take, and the shares of its parts and rounds.

use std::time::{Duration, Instant};

/// Divides the time of a bench among its parts. Without a limit every part takes what it needs.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    ends: Option<Instant>,
    /// The end of the present part.
    part_ends: Option<Instant>,
}

impl Clock {
    /// Starts now, and ends after `limit` if there is one.
    pub fn new(limit: Option<Duration>) -> Self {
        let began = Instant::now();
        let ends = limit.map(|limit| began + limit);
        Self { began, ends, part_ends: ends }
    }

    /// The time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// True if everything is measured, however long it takes.
    pub(crate) fn is_full(&self) -> bool {
        self.ends.is_none()
    }

    /// Gives the part that begins now `share` of the whole's remaining time.
    pub(crate) fn begin_part(&mut self, share: f64) {
        self.part_ends = self.ends.map(|ends| part_of(ends, share));
    }

    /// Rounds for which `share` of this part's remaining time suffices, within these bounds.
    pub(crate) fn rounds(&self, share: f64, at_least: u32, at_most: u32) -> Rounds {
        let ends = self.part_ends.map(|ends| part_of(ends, share));
        Rounds { began: Instant::now(), ends, done: 0, at_least: at_least.min(at_most), at_most }
    }
}

/// The end of `share` of the time from now until `ends`.
fn part_of(ends: Instant, share: f64) -> Instant {
    let now = Instant::now();
    now + ends.saturating_duration_since(now).mul_f64(share.clamp(0.0, 1.0))
}

/// The numbers of rounds, from 0 on, while another one fits the time.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    began: Instant,
    ends: Option<Instant>,
    done: u32,
    at_least: u32,
    at_most: u32,
}

impl Iterator for Rounds {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let round = self.done;
        let fits = || {
            let one = self.began.elapsed() / round.max(1);
            self.ends.is_none_or(|ends| Instant::now() + one <= ends)
        };
        if round >= self.at_most || (round >= self.at_least && !fits()) {
            return None;
        }
        self.done += 1;
        Some(round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_end_with_the_time_but_not_before_the_least() {
        let late = Clock::new(Some(Duration::ZERO));
        assert_eq!(late.rounds(1.0, 3, 9).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(late.rounds(1.0, 3, 2).count(), 2);
        assert_eq!(Clock::new(None).rounds(0.1, 3, 9).count(), 9);
        assert_eq!(Clock::new(Some(Duration::from_secs(3600))).rounds(1.0, 1, 7).count(), 7);
    }

    #[test]
    fn a_part_gets_its_share_of_what_is_left() {
        let mut clock = Clock::new(Some(Duration::from_secs(1000)));
        clock.begin_part(0.25);
        let left = clock.part_ends.unwrap() - Instant::now();
        assert!((240..=250).contains(&left.as_secs()), "{left:?}");
        assert!(!clock.is_full() && Clock::new(None).is_full());
    }
}

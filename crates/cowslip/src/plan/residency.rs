//! When all frozen memory is mapped again, after writes that took its huge mappings.

use super::facts::Facts;
use super::pace::Turn;
use super::settings::residency::{FEW_WRITES_NS, ROUND};
use super::task::{Decision, Task};

/// The schedule of the rounds.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    turn: Turn,
    /// The last look: its time, and the private pages of the process then.
    looked_ns: u64,
    pages: Option<u64>,
    /// Pages were written since the last round.
    is_behind: bool,
}

impl Rounds {
    /// Begins anew after a freeze.
    pub(crate) fn freeze(&mut self) {
        *self = Self::default();
    }

    /// Queues all frozen memory, if it is time for that and pages were written since.
    pub(super) fn next(&mut self, facts: &impl Facts) -> Decision {
        if facts.map().private() == 0 {
            return Decision::Nothing;
        }
        let now_ns = facts.now_ns();
        if self.turn.is_due(now_ns) && self.look(now_ns, facts.process_private_pages()) {
            return Decision::Do(Task::QueueFrozen);
        }
        Decision::After(self.turn.left_ns(now_ns))
    }

    /// Called when a look is due. True if a round must be made now.
    fn look(&mut self, now_ns: u64, pages: Option<u64>) -> bool {
        let is_first = self.turn.is_new();
        self.turn.put_off(now_ns, ROUND);
        let written = pages.unwrap_or(0).saturating_sub(self.pages.unwrap_or(0));
        let few = now_ns.saturating_sub(self.looked_ns) / FEW_WRITES_NS;
        self.is_behind |= !is_first && pages != self.pages;
        (self.looked_ns, self.pages) = (now_ns, pages);
        let is_due = self.is_behind && written <= few;
        self.is_behind &= !is_due;
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_round_follows_writes_when_they_have_grown_few() {
        let mut rounds = Rounds::default();
        assert!(!rounds.look(SECOND_NS, Some(100)), "nothing to compare with");
        assert!(!rounds.look(2 * SECOND_NS, Some(100)), "nothing was written");
        assert!(!rounds.look(3 * SECOND_NS, Some(100_000)), "too much at a time");
        assert!(rounds.look(4 * SECOND_NS, Some(100_000)), "made up for");
        assert!(!rounds.look(5 * SECOND_NS, Some(100_000)), "once");
        assert!(rounds.look(6 * SECOND_NS, Some(100_001)));
    }

    #[test]
    fn looks_grow_rare() {
        let mut rounds = Rounds::default();
        let delays = [1; 9].map(|now_ns| {
            rounds.look(now_ns, None);
            rounds.turn.left_ns(now_ns)
        });
        assert_eq!((delays[0], delays[1]), (ROUND.first_ns, 2 * ROUND.first_ns));
        assert_eq!(delays[8], ROUND.last_ns);
    }
}

//! When the chunks of several files come into one again: while nothing is read, with long rests.

use cowslip_sys::Errno;

use super::facts::Facts;
use super::pace::Turn;
use super::settings::consolidate::{REST, RETRY};
use super::task::{Decision, Task};

/// Progress of the moves into one file.
#[derive(Debug, Default)]
pub(crate) struct Consolidate {
    next: usize,
    turn: Turn,
}

impl Consolidate {
    /// Moves one chunk, while all are live.
    pub(super) fn next(&mut self, facts: &impl Facts) -> Decision {
        if facts.has_one_file() || facts.may_be_pinned() {
            *self = Self::default();
            return Decision::Nothing;
        }
        let now_ns = facts.now_ns();
        if self.turn.is_new() {
            // Another fork may come soon, which undoes it.
            self.turn.set(now_ns + RETRY.first_ns);
        }
        match self.turn.left_ns(now_ns) {
            0 => Decision::Do(Task::Consolidate { from: self.next }),
            left_ns => Decision::After(left_ns),
        }
    }

    /// Notes that chunks before `next` are done with, in this round.
    pub(crate) fn pass_to(&mut self, next: usize) {
        self.next = next;
    }

    /// Notes a move: false if no chunk was left, or those left stay where they are for now.
    pub(super) fn worked(&mut self, has_moved: Result<bool, Errno>, took_ns: u64, now_ns: u64) {
        match has_moved {
            Ok(true) => self.turn.set(now_ns + took_ns * REST),
            Ok(false) => {
                // Chunks that stay may be gone later.
                self.next = 0;
                self.turn.put_off(now_ns, RETRY);
            }
            Err(_) => _ = self.turn.put_off(now_ns, RETRY),
        }
    }
}

//! Which chunks have huge pages.
//!
//! ```text
//!            first touch                    15/16 are there
//!   base pages ─────▶ 4 KiB each ───────────────────────────▶ huge page
//!        ▲                 ▲                                       │
//!        │                 └── an eighth was given back: split ────┘
//!        └─ as much again of the next mapping begins huge once three quarters of what was handed out before are there
//! ```
//! The eighth bounds memory: at least 7/8 of a huge page that stays are used, so that it holds at most 8/7 = 1.143
//! times the memory in use. A page is made huge again at 15/16 only, so that a program that gives back and takes again
//! around one of the two does not have pages split and made in turn.

use cowslip_sys::Errno;
use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};

use super::facts::Facts;
use super::pace::Turn;
use super::settings::density::{
    LOOK_CHUNKS, MISSING_SHARE, OVERDUE_NS, REFUSED, REST, REST_WHEN_FREE, ROUND, SPLIT_SHARE,
    TRUST,
};
use super::task::{Decision, Task};
use crate::memory::chunk_map::Chunk;

/// Progress of the rounds that make chunks huge and split them.
#[derive(Debug, Default)]
pub(crate) struct Tending {
    /// The next chunk to look at.
    next: usize,
    turn: Turn,
    /// The next round begins soon.
    is_hurried: bool,
    /// The size of the files' content when a round began.
    held_bytes: u64,
    /// In this round something was done, or could not be done yet.
    has_changed: bool,
    /// Time that looks and splits of this round took.
    busy_ns: u64,
    /// Time that the last collapse and its page took, if the pause after it has not begun.
    collapsed_ns: u64,
    /// The chunk for which a page is being warmed.
    warms_for: Option<usize>,
    /// Time that it took to warm it; `None` before that.
    warmed_ns: Option<u64>,
    /// End of that pause, which nothing shortens.
    rests_until_ns: u64,
    /// The last time that it was due and had its turn.
    served_ns: u64,
    /// The next collapse, after some that the kernel refused: without room, or for memory that it cannot isolate.
    refused: Turn,
    /// The kernel cannot make file memory huge afterwards.
    is_futile: bool,
}

impl Tending {
    /// The place of the round.
    pub(crate) fn place(&self) -> usize {
        self.next
    }

    /// Looks again soon: chunks that could not be looked at may be ready now.
    pub(crate) fn hurry(&mut self) {
        self.is_hurried = true;
    }

    /// Notes that the program has changed its mind about huge pages.
    pub(crate) fn change(&mut self) {
        self.has_changed = true;
        self.hurry();
    }

    /// Notes that the kernel makes no file memory huge.
    pub(crate) fn give_up(&mut self) {
        self.is_futile = true;
    }

    /// Notes that a chunk was split, or will be.
    pub(crate) fn split(&mut self, has_changed: bool, took_ns: u64) {
        self.has_changed |= has_changed;
        self.busy_ns += took_ns;
    }

    /// In a forked child: its processor has no warm page.
    pub(super) fn begin_child(&mut self) {
        (self.warms_for, self.warmed_ns) = (None, None);
    }

    /// Notes that the huge page that the kernel gives out next is warm.
    pub(crate) fn warmed(&mut self, took_ns: u64) {
        self.warmed_ns = Some(took_ns);
    }

    /// Notes the outcome of a collapse: `Ok(true)` if the chunk is huge now. Refused ones are tried again, rarer and rarer.
    pub(crate) fn collapsed(&mut self, outcome: Result<bool, Errno>, took_ns: u64, now_ns: u64) {
        self.collapsed_ns = took_ns + self.warmed_ns.take().unwrap_or(0);
        self.has_changed |= outcome != Ok(false);
        match outcome {
            Ok(_) => self.refused.succeed(),
            Err(_) => _ = self.refused.put_off(now_ns, REFUSED),
        }
    }

    /// Looks at some chunks, and splits one or makes it huge.
    pub(super) fn next(&mut self, facts: &impl Facts) -> Decision {
        if !facts.can_tend() {
            return Decision::Nothing;
        }
        let now_ns = facts.now_ns();
        if std::mem::take(&mut self.is_hurried) || self.turn.is_new() {
            // Not at once: a thread that was started for a fork begins while the fork waits for the arena's lock.
            self.turn.bring_forward(now_ns + ROUND.first_ns);
        }
        if self.collapsed_ns > 0 {
            let rest = if facts.is_crowded() { REST } else { REST_WHEN_FREE };
            self.rests_until_ns = now_ns + std::mem::take(&mut self.collapsed_ns) * rest;
        }
        let left_ns = self.due_ns().saturating_sub(now_ns);
        if left_ns > 0 {
            return Decision::After(left_ns);
        }
        self.served_ns = now_ns;
        let used_before_ns = facts.used_ns();
        if let Some(task) = self.take_up(facts) {
            return Decision::Do(task);
        }
        if self.next == 0 && !self.begin_round(facts) {
            return Decision::After(self.end_round(facts.now_ns()));
        }
        for _ in 0..LOOK_CHUNKS {
            let Some(chunk) = facts.next_sparse(self.next) else {
                return Decision::After(self.end_round(facts.now_ns()));
            };
            self.next = chunk + 1;
            if let Some(task) = self.choose(facts, chunk) {
                self.busy_ns += facts.used_ns() - used_before_ns;
                return Decision::Do(task);
            }
        }
        self.busy_ns += facts.used_ns() - used_before_ns;
        Decision::Do(Task::LookOn)
    }

    /// Work that goes before all other: a page that is warm grows cold, and moves beside a child that reads for ever would
    /// leave no time for anything else.
    pub(super) fn pressing(&mut self, facts: &impl Facts) -> Decision {
        // A thaw gives memory back.
        if facts.is_short() || !facts.can_tend() {
            return Decision::Nothing;
        }
        if self.warmed_ns.is_some()
            && let Some(task) = self.take_up(facts)
        {
            return Decision::Do(task);
        }
        let due_ns = self.due_ns().max(self.served_ns);
        let is_overdue = facts.now_ns() >= due_ns.saturating_add(OVERDUE_NS);
        if is_overdue { self.next(facts) } else { Decision::Nothing }
    }

    fn due_ns(&self) -> u64 {
        self.turn.not_before_ns().max(self.rests_until_ns)
    }

    /// Goes on with the chunk for which a page was to be warmed.
    fn take_up(&mut self, facts: &impl Facts) -> Option<Task> {
        let chunk = self.warms_for.take()?;
        self.choose(facts, chunk)
    }

    fn choose(&mut self, facts: &impl Facts, chunk: usize) -> Option<Task> {
        if facts.map().get(chunk) != Chunk::Live {
            // The next round looks at it again.
            self.has_changed = true;
            return None;
        }
        if facts.is_split_due(chunk) {
            return Some(Task::Split(chunk));
        }
        if !self.refused.is_due(facts.now_ns()) {
            self.has_changed = true;
            return None;
        }
        let may = !self.is_futile && facts.bytes_to_collapse(chunk).is_some_and(is_dense);
        if may && self.warmed_ns.is_none() {
            self.warms_for = Some(chunk);
            return Some(Task::WarmPage);
        }
        may.then_some(Task::Collapse(chunk))
    }

    /// True if there may be something to do.
    fn begin_round(&mut self, facts: &impl Facts) -> bool {
        let held_bytes = facts.held_bytes();
        let has_grown = std::mem::replace(&mut self.held_bytes, held_bytes) != held_bytes;
        if has_grown {
            self.turn.succeed();
        }
        std::mem::take(&mut self.has_changed) || has_grown || facts.is_any_split_due()
    }

    /// Returns the time to the next round.
    fn end_round(&mut self, now_ns: u64) -> u64 {
        self.next = 0;
        // A page that no chunk took is cold by the next round.
        let busy_ns = std::mem::take(&mut self.busy_ns) + self.warmed_ns.take().unwrap_or(0);
        let rest_ns = busy_ns * REST;
        let delay_ns = self.turn.double(ROUND).max(rest_ns);
        self.turn.set(now_ns + delay_ns);
        delay_ns
    }
}

/// True if this many pages of a huge one are better given back than kept for the sake of the rest.
pub(crate) fn is_worth_splitting(given_pages: usize) -> bool {
    given_pages * page_size_bytes() * SPLIT_SHARE >= CHUNK_BYTES
}

/// True if a chunk of base pages is better one huge page.
fn is_dense(held_bytes: u64) -> bool {
    (CHUNK_BYTES as u64).saturating_sub(held_bytes) * MISSING_SHARE <= CHUNK_BYTES as u64
}

/// The amount of new memory that may begin on huge pages in a program that has used `used_bytes` so far, of which
/// `held_bytes` are in memory: as much again, so that unused memory is bounded by used memory.
pub(crate) fn trusted_bytes(used_bytes: u64, held_bytes: u64) -> u64 {
    let (enough, all) = TRUST;
    if held_bytes.saturating_mul(all) >= used_bytes.saturating_mul(enough) { used_bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_huge_holds_little_that_is_not_used_and_what_becomes_huge_is_not_split_at_once() {
        let pages = |count: usize| (count * page_size_bytes()) as u64;
        let all = CHUNK_BYTES / page_size_bytes();
        let most_given = (0..=all).filter(|&given| !is_worth_splitting(given)).max().unwrap();
        assert!(all as f64 / (all - most_given) as f64 <= 1.15);
        let least_held = (0..=all).find(|&held| is_dense(pages(held))).unwrap();
        assert!(!is_worth_splitting(2 * (all - least_held) - 1), "{least_held}");
        assert!(is_dense(pages(all)) && !is_dense(0));
    }

    #[test]
    fn new_memory_begins_huge_in_a_program_that_fills_what_it_has() {
        assert_eq!(trusted_bytes(0, 0), 0);
        assert_eq!(trusted_bytes(100, 74), 0);
        assert_eq!(trusted_bytes(100, 75), 100);
        assert_eq!(trusted_bytes(u64::MAX, u64::MAX), u64::MAX);
    }
}

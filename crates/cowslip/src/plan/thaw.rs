//! When frozen memory is thawed, and which chunks come next.
//!
//! ```text
//!   a child reads ──▶ its end ──▶ lingers: the next fork may follow ──▶ thaws ──▶ all live
//!        │  looks, rarer and rarer      │ memory is short, or copied much ──▲ │
//!        ▼                              └─────────────────────────────────────┘
//!   chunks that are written much move       a chunk that fails stays frozen, and waits
//! ```
//! Neighbours with few private pages go in one step, which is held once; a chunk with many goes alone, and in parts, so
//! that a writer waits for a few copies.

use std::ops::Range;

use cowslip_sys::Errno;

use super::facts::Facts;
use super::limits::count_copies;
use super::moving::Moving;
use super::pace::Turn;
use super::settings;
use super::settings::thaw::{
    FILLED_CHUNKS, LINGER_MOST_NS, LINGER_NS, LINGER_THAWS, PRIVATE_SHARE, READERS,
    READERS_WHEN_SHORT, RETRY, RUN_CHUNKS, TOGETHER_BYTES,
};
use super::task::{Decision, Pace, Task, Work, many_pages};
use crate::memory::chunk_map::Chunk;

/// The progress of a thaw.
#[derive(Debug, Default)]
pub(crate) struct Thaw {
    /// A child was forked from frozen memory, and the next one may follow soon.
    has_forked: bool,
    /// The time until which it is worth waiting for that next child.
    linger_until_ns: u64,
    began_ns: Option<u64>,
    /// Work that this thaw took, without its pauses.
    busy_ns: u64,
    /// Work that the last whole thaw took.
    last_busy_ns: u64,
    /// The next attempt; its delays are those between looks for readers too.
    turn: Turn,
    /// While memory is short: no chunk before this one is frozen without a private page.
    clean_from: usize,
    /// The chunk that was chosen last.
    chosen: usize,
    /// The search begins here: after a chunk that failed, which comes last then.
    from: usize,
}

impl Thaw {
    /// Notes that a child was forked from frozen memory.
    pub(crate) fn fork(&mut self) {
        self.has_forked = true;
    }

    /// Notes that the frozen memory has changed.
    pub(crate) fn freeze(&mut self) {
        (self.clean_from, self.from) = (0, 0);
    }

    /// Makes the next delays short: a part was thawed, or a reader may have ended.
    pub(crate) fn look_soon(&mut self) {
        self.turn.succeed();
    }

    /// Adds work that the thaw took.
    pub(crate) fn add_work(&mut self, took_ns: u64) {
        self.busy_ns += took_ns;
    }

    /// Puts the next attempt off. The chunk that was chosen comes after all others.
    pub(crate) fn fail(&mut self, now_ns: u64) {
        self.turn.put_off(now_ns, RETRY);
        self.from = self.chosen + 1;
    }

    /// Ends a round: all chunks that can be thawed now are.
    fn end_round(&mut self) {
        self.began_ns = None;
        let busy_ns = std::mem::take(&mut self.busy_ns);
        if busy_ns > 0 {
            self.last_busy_ns = busy_ns;
        }
    }

    /// Notes that all memory is live.
    pub(crate) fn finish(&mut self) {
        self.end_round();
        (self.clean_from, self.from) = (0, 0);
    }

    /// The end of a thaw that has made all memory live.
    pub(super) fn finish_now(&self, facts: &impl Facts) -> Option<Task> {
        let is_over = facts.map().private() == 0 && !facts.is_held();
        self.began_ns.filter(|_| is_over).map(|began_ns| Task::Finish { began_ns })
    }

    /// The next piece of a thaw; a move while others read all that is frozen.
    pub(super) fn next(&mut self, facts: &mut impl Facts, moving: &mut Moving) -> Decision {
        if facts.is_held() {
            return Decision::Nothing;
        }
        let is_live = facts.map().private() == 0;
        if is_live && !facts.has_vacated() {
            return Decision::Nothing;
        }
        let readers = facts.readers();
        let now_ns = facts.now_ns();
        if readers.has_ended {
            self.linger(now_ns);
        }
        let is_short = facts.is_short();
        let wanted = can_thaw(is_short || facts.keeps_borrowed());
        if facts.map().next_unread(0, 1, readers.read, wanted).is_none() {
            // All that is left has readers.
            self.end_round();
            if is_live && !facts.has_vacated() {
                return Decision::Do(Task::Finish { began_ns: now_ns });
            }
            return self.while_read(facts, moving);
        }
        if let Some(left_ns) = self.left_ns(facts, now_ns) {
            return Decision::After(left_ns).or_sooner(count_copies(facts));
        }
        self.began_ns.get_or_insert(now_ns);
        let used_before_ns = facts.used_ns();
        let chosen = self.choose(facts, readers.read);
        self.busy_ns += facts.used_ns() - used_before_ns;
        Decision::Do(match chosen {
            Ok(task) => task,
            Err(errno) => Task::Failed(Work::Thaw, errno),
        })
    }

    /// Begins to linger after the end of the last child.
    fn linger(&mut self, now_ns: u64) {
        self.turn.succeed();
        if std::mem::take(&mut self.has_forked) {
            let few_thaws_ns = self.last_busy_ns * LINGER_THAWS;
            self.turn.set(now_ns + LINGER_NS);
            self.linger_until_ns = now_ns + few_thaws_ns.min(LINGER_MOST_NS);
        }
    }

    /// Time for which a thaw that could begin waits; `None` if it does not.
    fn left_ns(&self, facts: &impl Facts, now_ns: u64) -> Option<u64> {
        // After a failure it waits though memory is short.
        let is_pressed = facts.is_short() && !self.turn.is_delayed();
        if !self.turn.is_due(now_ns) && !is_pressed {
            return Some(self.turn.left_ns(now_ns));
        }
        let left_ns = self.linger_until_ns.saturating_sub(now_ns);
        if left_ns > 0 && !facts.is_short() && !has_copied_much(facts) {
            return Some(left_ns.min(LINGER_NS));
        }
        let is_first = self.began_ns.is_none();
        (is_first && facts.may_be_pinned()).then_some(RETRY.last_ns)
    }

    /// Moves, and looks for readers, while all that is frozen is read.
    fn while_read(&mut self, facts: &mut impl Facts, moving: &mut Moving) -> Decision {
        // Before the moves, which may go on for as long as the child reads.
        let limit = facts.keep_limit(true).map_or(Decision::Nothing, Decision::After);
        let moved = moving.next(facts);
        if matches!(moved, Decision::Do(_)) {
            return moved;
        }
        let delays = if facts.is_short() { READERS_WHEN_SHORT } else { READERS };
        Decision::After(self.turn.double(delays)).or_sooner(limit).or_sooner(moved)
    }

    /// Chooses the chunks to thaw next, of which there are some.
    fn choose(&mut self, facts: &impl Facts, read: Option<u64>) -> Result<Task, Errno> {
        let is_short = facts.is_short();
        let from = if is_short { self.first_clean(facts, read)? } else { None };
        let map = facts.map();
        let wanted = can_thaw(is_short || facts.keeps_borrowed());
        let Some(run) = map
            .next_unread(from.unwrap_or(self.from), RUN_CHUNKS, read, &wanted)
            .or_else(|| map.next_unread(0, RUN_CHUNKS, read, &wanted))
        else {
            return Ok(Task::LookOn);
        };
        let first = run.start;
        self.chosen = first;
        let is_plain = |chunk| map.get(chunk).is_private_file();
        if !is_plain(first) {
            return Ok(Task::Thaw(first..first + 1, Pace::AtOnce));
        }
        // If it is, the chunk moves to another file: one is enough for a step.
        let is_exposed = facts.is_exposed(first);
        let is_borrowed = map.get(first) == Chunk::Borrowed;
        if is_borrowed
            && !is_exposed
            && let Some(chunk) = first_to_fill(facts, run.clone())
        {
            return Ok(Task::Fill(chunk));
        }
        let private = facts.private_pages(first, many_pages())?;
        let tracks = facts.tracks_changes();
        let is_like_first = |chunk| match (tracks, is_borrowed) {
            (true, _) => map.get(chunk) == map.get(first),
            (false, true) => map.get(chunk) == Chunk::Borrowed && facts.is_filled(chunk),
            (false, false) => map.get(chunk) != Chunk::Borrowed,
        };
        // Clean chunks whose changes are tracked stay in place. A borrowed chunk takes time for its base.
        let most = if tracks || is_borrowed { 0 } else { settings::pages(TOGETHER_BYTES) };
        let (mut end, mut together) = (first + 1, private);
        while together <= most
            && !is_exposed
            && run.contains(&end)
            && is_plain(end)
            && map.file(end) == map.file(first)
            && is_like_first(end)
        {
            together += facts.private_pages(end, most - together)?;
            if together > most {
                break;
            }
            end += 1;
        }
        if tracks && !is_exposed && private == 0 && map.get(first) == Chunk::Frozen {
            return Ok(Task::Keep(first..end));
        }
        // hugetlbfs maps whole huge pages.
        let pace = if facts.is_hugetlb() { Pace::AtOnce } else { Pace::new(private) };
        Ok(Task::Thaw(first..end, pace))
    }

    /// While memory is short: the next chunk without a private page. Its thaw takes no time, and live memory makes no
    /// copies. Chunks with copies to give back come after these.
    fn first_clean(
        &mut self,
        facts: &impl Facts,
        read: Option<u64>,
    ) -> Result<Option<usize>, Errno> {
        let wanted = |chunk: Chunk| chunk.is_private_file() && can_thaw(true)(chunk);
        while let Some(run) = facts.map().next_unread(self.clean_from, 1, read, wanted) {
            if facts.private_pages(run.start, 0)? == 0 {
                return Ok(Some(run.start));
            }
            self.clean_from = run.start + 1;
        }
        Ok(None)
    }
}

/// Tells if a thaw takes a chunk now. A borrowed chunk costs nothing, and its copy does.
fn can_thaw(stays_borrowed: bool) -> impl Fn(Chunk) -> bool {
    move |chunk| chunk.is_private() && !(stays_borrowed && chunk == Chunk::Borrowed)
}

/// The first chunk of a borrowed run that needs a copy of its base: copied chunks become live together, later.
fn first_to_fill(facts: &impl Facts, run: Range<usize>) -> Option<usize> {
    let is_borrowed = |chunk: &usize| facts.map().get(*chunk) == Chunk::Borrowed;
    let mut borrowed = run.take(FILLED_CHUNKS).take_while(is_borrowed);
    borrowed.find(|chunk| !facts.is_filled(*chunk))
}

/// True if the process has so many private pages that staying frozen is expensive.
fn has_copied_much(facts: &impl Facts) -> bool {
    facts.process_private_pages().is_some_and(|pages| pages > facts.used_pages() / PRIVATE_SHARE)
}

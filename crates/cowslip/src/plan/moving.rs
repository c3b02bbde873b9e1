//! Which chunks move out of frozen memory while others read it.
//!
//! ```text
//!   threads fault ──▶ a look at all frozen chunks ──▶ many copies in one ──▶ moved to a file without readers
//!     ▲ 1 to 20 ms      a thirtieth of the time,        a run of writes ──▶ so are the chunks ahead of it, first
//!                       less while it finds nothing         ▲ 0.1 ms, while it goes on
//! ```
//! A first write to a frozen page copies 4 KiB, and a thaw copies them back. A chunk that was moved is live: its writes
//! cost nothing, the thaw has nothing to do, and the next freeze moves it by its page table. Its memory is held twice
//! until the last reader ends, as `fork(2)` with hugetlb pages would have it from the first write on.
//!
//! Faults reveal first writes; the process' number of private pages does not: it falls when another arena thaws, which
//! would hide writes to this one.

use std::collections::VecDeque;
use std::ops::Range;

use cowslip_sys::Errno;

use super::facts::{Counts, Facts};
use super::pace::Turn;
use super::settings::moving::{
    DOUBLED_NS, FEW_FAULTS_NS, FRONT_BYTES, HOT_BYTES, KNOWN_NS, LOOK, MOST_AHEAD, MOST_BORDERS,
    MOST_DOUBLINGS, MOST_FRONTS, PASSED_BYTES, PURSUED_NS, PURSUIT_NS, PURSUIT_NS_PER_CHUNK, REST,
    RETRY, WORTH_A_LOOK,
};
use super::settings::pages;
use super::task::{Decision, Pace, Task, Work};
use crate::memory::chunk_map::{Chunk, ChunkMap};

/// Observed writes to frozen chunks, and the chunks that are to be moved for them.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// The next look.
    turn: Turn,
    /// The next attempt after a move that failed.
    retry: Turn,
    /// The chunk of that move.
    failed: Option<usize>,
    /// Faults of the process at the last look; `None` if the next look is due even without later writes.
    faults: Option<u64>,
    /// The time since which there are faults, too few for a look.
    few_since_ns: Option<u64>,
    /// Looks in a row that found nothing.
    in_vain: u32,
    /// Processor time of the last look.
    price_ns: Option<u64>,
    /// Private pages of each chunk at the last look.
    counts: Vec<u16>,
    wanted: VecDeque<usize>,
    fronts: Vec<Front>,
    /// Chunks that runs of writes are about to come to. They move before the wanted ones.
    ahead: VecDeque<usize>,
    /// The chunk that moves now is one of these.
    is_ahead: bool,
    pursued_until_ns: u64,
}

/// The place where a run of writes goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Front {
    next: usize,
    ahead: usize,
}

impl Moving {
    /// Begins anew: a freeze or a roll back changed the frozen memory.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Notes that a chunk has moved.
    pub(super) fn moved(&mut self, now_ns: u64) {
        self.retry.succeed();
        self.pass(now_ns);
    }

    /// Goes on with a run after a chunk that it comes to.
    fn pass(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.is_ahead) {
            self.pursue(now_ns);
        }
    }

    /// Notes a failed move: the chunk stays frozen and exact, and is tried again later, after all others.
    pub(super) fn fail(&mut self, chunk: usize, now_ns: u64) {
        self.failed = Some(chunk);
        self.retry.put_off(now_ns, RETRY);
        self.look_anew();
    }

    /// Notes a look that failed.
    pub(super) fn fail_look(&mut self, now_ns: u64) {
        self.turn.put_off(now_ns, RETRY);
        self.look_anew();
    }

    /// Has the chunks found again though nothing more is written to them.
    fn look_anew(&mut self) {
        self.clear();
        self.faults = None;
        self.is_ahead = false;
    }

    /// In a forked child: forgets the parent's writes, and frees nothing.
    pub(super) fn begin_child(&mut self) {
        self.look_anew();
        self.counts.clear();
        (self.turn, self.retry) = Default::default();
        (self.in_vain, self.pursued_until_ns) = (0, 0);
        (self.few_since_ns, self.failed) = (None, None);
    }

    fn clear(&mut self) {
        self.wanted.clear();
        self.ahead.clear();
        self.fronts.clear();
    }

    /// True while a run of writes goes on.
    fn pursues(&self, now_ns: u64) -> bool {
        !self.fronts.is_empty() && now_ns < self.pursued_until_ns
    }

    fn pursue(&mut self, now_ns: u64) {
        self.pursued_until_ns = now_ns + PURSUED_NS;
    }

    /// The next chunk to move, if there is one, while others read frozen memory.
    pub(super) fn next(&mut self, facts: &mut impl Facts) -> Decision {
        if !facts.is_served() {
            return Decision::Nothing;
        }
        let (map, now_ns) = (facts.map(), facts.now_ns());
        let left_ns = self.retry.left_ns(now_ns);
        // A move, or a freeze or a thaw without a fork after it, failed half-way. Its file has no readers.
        let is_partial = |chunk| chunk == Chunk::Partial;
        let after_failed = self.failed.map_or(0, |chunk| chunk + 1);
        let partial = map.next_run(after_failed, 1, is_partial);
        if let Some(partial) = partial.or_else(|| map.next_run(0, 1, is_partial)) {
            return match left_ns {
                0 => Decision::Do(Task::Complete(partial.start)),
                left_ns => Decision::After(left_ns),
            };
        }
        if facts.is_short() {
            // The chunks may no longer be written when there is memory again, or need not be to be hot.
            self.look_anew();
        }
        let has_any = map.count(Chunk::Frozen) + map.count(Chunk::Borrowed) > 0;
        if facts.is_short() || facts.is_hugetlb() || !has_any {
            return Decision::Nothing;
        }
        if left_ns > 0 {
            return Decision::After(left_ns);
        }
        match self.choose_next(facts, now_ns) {
            Ok(Some(task)) => Decision::Do(task),
            Ok(None) => Decision::After(self.left_ns(facts.map().len(), facts.now_ns())),
            Err(errno) => Decision::Do(Task::Failed(Work::Move, errno)),
        }
    }

    fn left_ns(&self, chunks: usize, now_ns: u64) -> u64 {
        let pursuit_ns = PURSUIT_NS.max(PURSUIT_NS_PER_CHUNK * chunks as u64);
        let left_ns = self.turn.left_ns(now_ns);
        if self.pursues(now_ns) { left_ns.min(pursuit_ns) } else { left_ns }.max(1)
    }

    fn choose_next(&mut self, facts: &impl Facts, now_ns: u64) -> Result<Option<Task>, Errno> {
        let is_due = self.turn.is_due(now_ns);
        if self.ahead.is_empty() && (is_due || self.pursues(now_ns)) {
            self.go_ahead(facts, now_ns)?;
        }
        if is_due && self.ahead.is_empty() && self.wanted.is_empty() {
            self.look(facts, now_ns)?;
        }
        self.is_ahead = !self.ahead.is_empty();
        let next = self.ahead.pop_front().or_else(|| self.wanted.pop_front());
        let Some(chunk) = next else { return Ok(None) };
        let is_frozen = is_movable(facts.map().get(chunk));
        if !is_frozen || !facts.may_move(chunk) {
            if is_frozen {
                // It may be moved later, and nothing need be written to it until then.
                self.faults = None;
            }
            self.pass(facts.now_ns());
            return Ok(Some(Task::LookOn));
        }
        let passed_pages = pages(PASSED_BYTES);
        let private = facts.private_pages(chunk, passed_pages)?;
        let is_held = self.is_ahead && private < passed_pages;
        let pace = if is_held { Pace::Held } else { Pace::new(private) };
        Ok(Some(Task::Move(chunk, pace)))
    }

    /// Finds chunks to move, and says when to look again.
    fn look(&mut self, facts: &impl Facts, now_ns: u64) -> Result<(), Errno> {
        // Where the kernel does not report faults, every look takes place when it is due.
        let faults = facts.faults();
        let grown = faults.zip(self.faults).map(|(now, before)| now.saturating_sub(before));
        if let Some(grown) = grown.filter(|grown| *grown < WORTH_A_LOOK) {
            let since_ns = *self.few_since_ns.get_or_insert(now_ns);
            if grown == 0 || now_ns < since_ns + FEW_FAULTS_NS {
                self.turn.put_off(now_ns, LOOK);
                return Ok(());
            }
        }
        self.few_since_ns = None;
        self.faults = faults;
        self.turn.succeed();
        let used_before_ns = facts.used_ns();
        let before = std::mem::take(&mut self.counts);
        let counts = facts.private_by_chunk()?;
        if self.choose(facts.map(), &facts.live_runs(), &before, &counts) {
            self.pursue(now_ns);
        }
        self.counts = counts.pages;
        if let Some(place) = self.wanted.iter().position(|chunk| Some(*chunk) == self.failed) {
            self.wanted.remove(place);
            self.wanted.extend(self.failed);
        }
        let found = self.wanted.len();
        self.wanted.retain(|chunk| facts.may_move(*chunk));
        if self.wanted.len() < found {
            self.faults = None;
        }
        self.in_vain = if self.wanted.is_empty() { self.in_vain.saturating_add(1) } else { 0 };
        let price_ns = facts.used_ns() - used_before_ns;
        // Where a host takes the processor of a virtual machine, that time is the look's in the guest's eyes: a single dear
        // look says nothing.
        let usual_ns = self.price_ns.replace(price_ns).unwrap_or(LOOK.last_ns).min(price_ns);
        let doubled_ns = (usual_ns * REST) << self.in_vain.min(MOST_DOUBLINGS);
        let rest_ns = doubled_ns.min(DOUBLED_NS).max(usual_ns * REST);
        self.turn.set(facts.now_ns() + rest_ns.max(LOOK.first_ns));
        Ok(())
    }

    /// Queues chunks with many private pages, and finds the fronts of runs of writes: chunks with new pages in order,
    /// behind which nothing was written yet. True if there is a new front.
    fn choose(
        &mut self,
        map: &ChunkMap,
        live: &[Range<usize>],
        before: &[u16],
        counts: &Counts,
    ) -> bool {
        let in_order = &counts.in_order;
        let counts = &counts.pages;
        let (hot_pages, front_pages) = (pages(HOT_BYTES), pages(FRONT_BYTES));
        let grown =
            |chunk: usize| counts[chunk].saturating_sub(before.get(chunk).copied().unwrap_or(0));
        let mut is_live = vec![false; counts.len() + 1];
        live.iter().for_each(|run| is_live[run.clone()].fill(true));
        let mut borders = 2 * live.len();
        let mut is_pursued = false;
        for chunk in 0..counts.len() {
            if u64::from(counts[chunk]) < front_pages || !is_movable(map.get(chunk)) {
                continue;
            }
            let is_ahead_cold = counts.get(chunk + 1) == Some(&0);
            let is_run =
                u64::from(grown(chunk)) >= front_pages && in_order.binary_search(&chunk).is_ok();
            let is_front = is_run && is_ahead_cold;
            let neighbours =
                usize::from(chunk > 0 && is_live[chunk - 1]) + usize::from(is_live[chunk + 1]);
            let is_hot = u64::from(counts[chunk]) >= hot_pages;
            if is_hot && (neighbours > 0 || borders < MOST_BORDERS) {
                self.wanted.push_back(chunk);
                is_live[chunk] = true;
                borders = (borders + 2).saturating_sub(2 * neighbours);
            }
            if is_front && self.fronts.iter().all(|front| front.next != chunk + 1) {
                if self.fronts.len() == MOST_FRONTS {
                    // The oldest has most likely come to its end.
                    self.fronts.remove(0);
                }
                self.fronts.push(Front { next: chunk + 1, ahead: 2 });
                is_pursued = true;
            }
        }
        is_pursued
    }

    /// Queues the chunks ahead of runs that go on, twice as many each time.
    fn go_ahead(&mut self, facts: &impl Facts, now_ns: u64) -> Result<(), Errno> {
        if now_ns >= self.pursued_until_ns.saturating_add(KNOWN_NS) {
            self.fronts.clear();
        }
        let mut fronts = std::mem::take(&mut self.fronts);
        let mut i = 0;
        while let Some(front) = fronts.get_mut(i) {
            if self.go_on(facts, front)? {
                i += 1;
            } else {
                fronts.remove(i);
            }
        }
        self.fronts = fronts;
        Ok(())
    }

    /// Queues the chunks ahead of a run if it has begun the first. False if the run cannot go on.
    fn go_on(&mut self, facts: &impl Facts, front: &mut Front) -> Result<bool, Errno> {
        let map = facts.map();
        let end = map.len();
        let is_frozen = |chunk: usize| chunk < end && map.get(chunk) == Chunk::Frozen;
        let last = front.next + MOST_AHEAD;
        while front.next < last {
            if !is_frozen(front.next) {
                return Ok(false);
            }
            let Some(private) = facts.pages_of_run(front.next)? else { return Ok(true) };
            if private < pages(PASSED_BYTES) {
                break;
            }
            self.wanted.push_back(front.next);
            front.next += 1;
        }
        if front.next == last {
            // The next step goes over the rest.
            return Ok(true);
        }
        let reached = (front.next..end).take(front.ahead);
        let reached: Vec<usize> = reached.take_while(|&chunk| is_frozen(chunk)).collect();
        front.next += reached.len();
        self.ahead.extend(reached);
        front.ahead = (front.ahead * 2).min(MOST_AHEAD);
        Ok(true)
    }
}

/// True if a chunk is moved when it is written much.
pub(crate) fn is_movable(chunk: Chunk) -> bool {
    matches!(chunk, Chunk::Frozen | Chunk::Borrowed)
}

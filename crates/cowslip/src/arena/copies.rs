//! A limit on the private copies that children cost their parent.
//!
//! While a child reads frozen memory, each page that the parent writes exists twice. `fork(2)` has the same price, and
//! a program that saves under heavy writes may need twice its memory. A limit bounds that: near it, the youngest child
//! that still reads is asked to end, and beyond it killed. The program goes on, and sees a child that a signal ended: a
//! save that failed.
//!
//! ```text
//!   copies > 3/4 limit ──▶ SIGTERM to the youngest reader ── soon > limit ──▶ SIGKILL
//!        ▲                              │ ended, and others still read
//!        └──────────────────────────────┘
//! ```
//! A child may finish its work after the first signal: a Redis that saves does. Only the memory that it costs decides
//! about the second one, since a second is long enough to copy all memory. From the first signal on, it is also the
//! process that the kernel kills where memory is full.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use cowslip_sys::process;
use cowslip_sys::procfs;
use cowslip_sys::units::{ByteCount, VirtRange};

use crate::metrics::Counters;
use crate::plan::settings::children::{
    ASK_SHARE, COUNT_NEAR_NS, COUNT_NS, COUNT_REST, ENDING_COUNTS, HALF_SHARE, MANY,
};
use crate::timing::Stopwatch;

const NO_LIMIT: u64 = u64::MAX;

/// The limit, and the children that it may end.
#[derive(Debug)]
pub(crate) struct CopyLimit {
    bytes: AtomicU64,
    next_look_ns: AtomicU64,
    /// The copies at the last look.
    copied_bytes: AtomicU64,
    near_until_ns: AtomicU64,
    /// A child was asked to end, and the copies that it cost are still there.
    was_reached: AtomicBool,
    forked: Mutex<Forked>,
    tell: OnceLock<fn(i32)>,
}

impl Default for CopyLimit {
    fn default() -> Self {
        Self {
            bytes: AtomicU64::new(NO_LIMIT),
            next_look_ns: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            near_until_ns: AtomicU64::new(0),
            was_reached: AtomicBool::new(false),
            forked: Mutex::default(),
            tell: OnceLock::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Forked {
    /// In the order of their forks.
    pids: Vec<i32>,
    ending: Option<Ending>,
}

/// A child that was asked to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ending {
    pid: i32,
    is_killed: bool,
}

/// The copies, beside their limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Low,
    Half,
    /// Over three quarters.
    Near,
    Over,
}

impl Level {
    /// The level of copies of which `added` bytes were not there at the last look.
    fn new(bytes: u64, added: u64, limit_bytes: u64) -> Self {
        let near = ask_bytes(limit_bytes);
        match bytes {
            _ if bytes > near && bytes + ENDING_COUNTS * added > limit_bytes => Self::Over,
            _ if bytes > near => Self::Near,
            _ if bytes > limit_bytes / HALF_SHARE => Self::Half,
            _ => Self::Low,
        }
    }
}

/// Copies beyond which a child is asked to end.
pub(crate) fn ask_bytes(limit_bytes: u64) -> u64 {
    limit_bytes - limit_bytes / ASK_SHARE
}

/// The next step against a child.
#[derive(PartialEq, Eq, Debug)]
enum Act {
    Nothing,
    Ask,
    Kill,
}

/// `ending` is a child that was asked to end and has not.
fn decide(level: Level, ending: Option<Ending>) -> Act {
    match ending {
        Some(ending) if ending.is_killed || level < Level::Over => Act::Nothing,
        Some(_) => Act::Kill,
        None if level >= Level::Near => Act::Ask,
        None => Act::Nothing,
    }
}

impl CopyLimit {
    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.bytes.load(Relaxed)).filter(|&bytes| bytes != NO_LIMIT)
    }

    fn forked(&self) -> MutexGuard<'_, Forked> {
        self.forked.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// See [`RawArena::limit_copies_for_children`](crate::raw::RawArena::limit_copies_for_children).
    pub(crate) fn set(&self, most: Option<ByteCount>) {
        let bytes = most.map_or(NO_LIMIT, |most| most.0.min(NO_LIMIT - 1));
        self.bytes.store(bytes, Relaxed);
        self.next_look_ns.store(0, Relaxed);
    }

    /// Registers `tell`, called with the id of each child that is ended. Only the first registration counts.
    pub(crate) fn on_child_ended(&self, tell: fn(i32)) {
        let _ = self.tell.set(tell);
    }

    /// Notes that `pid` was forked just now.
    pub(crate) fn note(&self, pid: i32) {
        if self.limit().is_none() {
            return;
        }
        let mut forked = self.forked();
        if forked.pids.len() >= MANY {
            forked.pids.retain(|&pid| process::is_running_child(pid));
        }
        forked.pids.push(pid);
    }

    /// True while the next look must not be late: a child is about to cost too much.
    pub(crate) fn is_near(&self) -> bool {
        let until_ns = self.near_until_ns.load(Relaxed);
        until_ns > 0 && process::now_ns() < until_ns
    }

    /// True from when a child was asked to end until all memory is live again: the copies must not linger.
    pub(crate) fn was_reached(&self) -> bool {
        self.was_reached.load(Relaxed)
    }

    /// Notes that all memory is live.
    pub(crate) fn forget_reached(&self) {
        self.was_reached.store(false, Relaxed);
    }

    /// In a child: forgets the children, which are its siblings.
    pub(crate) fn in_child(&self) {
        if let Ok(mut forked) = self.forked.try_lock() {
            *forked = Forked::default();
        }
    }

    /// Called while memory is frozen: ends a child if there are too many copies, unless some of them are of memory without
    /// readers (`may_end` is false). Returns the time to the next look, if there is a limit. `room_bytes` is the memory
    /// left below the limits of the group and the machine, and is the limit where the program itself would be killed
    /// first. `count` is exact near its argument.
    pub(crate) fn keep(
        &self,
        arena: VirtRange,
        counters: &Counters,
        may_end: bool,
        room_bytes: impl Fn() -> u64,
        count: impl Fn(u64) -> u64,
    ) -> Option<Duration> {
        let mut limit_bytes = self.limit()?;
        let now_ns = process::now_ns();
        let left_ns = self.next_look_ns.load(Relaxed).saturating_sub(now_ns);
        if left_ns > 0 {
            return Some(Duration::from_nanos(left_ns));
        }
        let mut bytes = count(limit_bytes);
        let room_bytes = room_bytes();
        if bytes.saturating_add(room_bytes) < limit_bytes {
            bytes = count(bytes + room_bytes);
            limit_bytes = bytes + room_bytes;
        }
        let added = bytes.saturating_sub(self.copied_bytes.swap(bytes, Relaxed));
        let level = Level::new(bytes, added, limit_bytes);
        let took_ns = Stopwatch::started_at(now_ns).elapsed_ns();
        let counted_ns = now_ns + took_ns;
        // A count of much memory takes long. Unless a child is about to end, most of the time is left to others.
        let is_quick = took_ns < COUNT_NEAR_NS / 2;
        let (look_ns, rest) = match level {
            Level::Low => (COUNT_NS, COUNT_REST),
            Level::Half => (COUNT_NEAR_NS, COUNT_REST),
            Level::Near | Level::Over => (COUNT_NEAR_NS, 1),
        };
        let look_ns = look_ns.max(took_ns * rest);
        if level > Level::Half || level == Level::Half && is_quick {
            self.near_until_ns.store(counted_ns + look_ns + COUNT_NS, Relaxed);
        }
        self.next_look_ns.store(counted_ns + look_ns, Relaxed);
        let mut forked = self.forked();
        forked.ending = forked.ending.filter(|ending| process::is_running_child(ending.pid));
        match decide(level, forked.ending) {
            _ if !may_end => {}
            Act::Nothing => {}
            Act::Ask => {
                forked.pids.retain(|&pid| process::is_running_child(pid));
                let youngest = forked.pids.iter().rev().find(|&&pid| reads(pid, arena));
                if let Some(&pid) = youngest
                    && process::end(pid, false).is_ok()
                {
                    end_before_others(pid);
                    counters.ended_children.fetch_add(1, Relaxed);
                    self.was_reached.store(true, Relaxed);
                    if let Some(tell) = self.tell.get() {
                        tell(pid);
                    }
                    forked.ending = Some(Ending { pid, is_killed: false });
                }
            }
            Act::Kill => {
                if let Some(ending) = &mut forked.ending {
                    ending.is_killed = process::end(ending.pid, true).is_ok();
                }
            }
        }
        Some(Duration::from_nanos(look_ns))
    }
}

/// Has the kernel kill this process first if the group's or the machine's memory is full before it has ended: the parent
/// is larger (`proc_pid_oom_score_adj(5)`).
fn end_before_others(pid: i32) {
    let _ = procfs::write_text(format!("/proc/{pid}/oom_score_adj"), "1000");
}

/// True if the process has memory at the arena's addresses: it was forked with it, and has not become another program.
fn reads(pid: i32, arena: VirtRange) -> bool {
    let maps = procfs::read_text(format!("/proc/{pid}/maps")).unwrap_or_default();
    procfs::mappings(&maps).any(|mapping| mapping.has_file && arena.contains(mapping.range.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_asked_then_killed_and_then_the_next_one_is_asked() {
        assert_eq!(decide(Level::Half, None), Act::Nothing);
        assert_eq!(decide(Level::Near, None), Act::Ask);
        assert_eq!(decide(Level::Over, None), Act::Ask);
        let asked = Some(Ending { pid: 1, is_killed: false });
        assert_eq!(decide(Level::Near, asked), Act::Nothing, "it may finish");
        assert_eq!(decide(Level::Over, asked), Act::Kill);
        let killed = asked.map(|ending| Ending { is_killed: true, ..ending });
        assert_eq!(decide(Level::Over, killed), Act::Nothing, "it is ending");
    }

    #[test]
    fn a_child_is_killed_before_the_copies_exceed_the_limit() {
        use Level::{Half, Low, Near, Over};
        let levels = [(50, 50), (51, 51), (75, 24), (76, 2), (76, 3), (101, 0)];
        let levels = levels.map(|(bytes, added)| Level::new(bytes, added, 100));
        assert_eq!(levels, [Low, Half, Half, Near, Over, Over]);
    }

    #[test]
    fn the_room_that_is_left_is_a_limit_for_copies_alone() {
        let limit = CopyLimit::default();
        let counters = Counters::default();
        // Beside 20 bytes of copies the program has 80 of its own, which a count that is not exact takes in.
        let count = |most| if most > 200 { 100 } else { 20 };
        let is_near = |most, room| {
            limit.set(Some(ByteCount(most)));
            limit.near_until_ns.store(0, Relaxed);
            limit.keep(VirtRange { start: 0, len: 0 }, &counters, true, || room, count);
            limit.is_near()
        };
        assert!(!is_near(1000, 1000));
        assert!(!is_near(1000, 30), "20 of 50 are copies");
        assert!(is_near(1000, 15), "20 of 35 are");
        assert!(is_near(30, 1000));
    }
}

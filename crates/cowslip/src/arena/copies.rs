//! A limit on the private copies that children cost their parent.
//!
//! While a child reads frozen memory, each page that the parent writes exists twice. `fork(2)` has the same price, and
//! a program that saves under heavy writes may need twice its memory. A limit bounds that: beyond it, the youngest
//! child that still reads is asked to end, and killed if it does not. The program goes on, and sees a child that a
//! signal ended: a save that failed.
//!
//! ```text
//!   copies > limit ──▶ SIGTERM to the youngest reader ── a second ──▶ SIGKILL, if it is there still
//!        ▲                                    │ ended, and others still read
//!        └────────────────────────────────────┘
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use cowslip_sys::process;
use cowslip_sys::procfs;
use cowslip_sys::units::{ByteCount, VirtRange};

use crate::metrics::Counters;

/// Time between two counts of the copies while there are readers.
const LOOK: Duration = Duration::from_millis(10);
const GRACE_NS: u64 = 1_000_000_000;
/// If there are this many children, those that have ended are removed.
const MANY: usize = 64;
const NO_LIMIT: u64 = u64::MAX;

/// The limit, and the children that it may end.
#[derive(Debug)]
pub(crate) struct CopyLimit {
    bytes: AtomicU64,
    next_look_ns: AtomicU64,
    forked: Mutex<Forked>,
    tell: OnceLock<fn(i32)>,
}

impl Default for CopyLimit {
    fn default() -> Self {
        Self {
            bytes: AtomicU64::new(NO_LIMIT),
            next_look_ns: AtomicU64::new(0),
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
    asked_ns: u64,
    is_killed: bool,
}

/// The next step against a child.
#[derive(PartialEq, Eq, Debug)]
enum Act {
    Nothing,
    Ask,
    Kill,
}

/// `ending` is a child that was asked to end and has not.
fn decide(is_over: bool, ending: Option<Ending>, now_ns: u64) -> Act {
    match ending {
        Some(it) if it.is_killed || now_ns.saturating_sub(it.asked_ns) < GRACE_NS => Act::Nothing,
        Some(_) => Act::Kill,
        None if is_over => Act::Ask,
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

    /// In a child: forgets the children, which are its siblings.
    pub(crate) fn in_child(&self) {
        if let Ok(mut forked) = self.forked.try_lock() {
            *forked = Forked::default();
        }
    }

    /// Called while there are readers: ends a child if there are too many copies. Returns the time to the next look, if
    /// there is a limit.
    pub(crate) fn keep(
        &self,
        arena: VirtRange,
        counters: &Counters,
        exceeds: impl FnOnce(u64) -> bool,
    ) -> Option<Duration> {
        let limit_bytes = self.limit()?;
        let now_ns = process::now_ns();
        let left_ns = self.next_look_ns.load(Relaxed).saturating_sub(now_ns);
        if left_ns > 0 {
            return Some(Duration::from_nanos(left_ns));
        }
        self.next_look_ns.store(now_ns + LOOK.as_nanos() as u64, Relaxed);
        let mut forked = self.forked();
        forked.ending = forked.ending.filter(|it| process::is_running_child(it.pid));
        let is_over = forked.ending.is_none() && exceeds(limit_bytes);
        match decide(is_over, forked.ending, now_ns) {
            Act::Nothing => {}
            Act::Ask => {
                forked.pids.retain(|&pid| process::is_running_child(pid));
                let youngest = forked.pids.iter().rev().find(|&&pid| reads(pid, arena));
                if let Some(&pid) = youngest
                    && process::end(pid, false).is_ok()
                {
                    counters.ended_children.fetch_add(1, Relaxed);
                    if let Some(tell) = self.tell.get() {
                        tell(pid);
                    }
                    let asked_ns = process::now_ns();
                    forked.ending = Some(Ending { pid, asked_ns, is_killed: false });
                }
            }
            Act::Kill => {
                if let Some(it) = &mut forked.ending {
                    it.is_killed = process::end(it.pid, true).is_ok();
                }
            }
        }
        Some(LOOK)
    }
}

/// True if the process has memory at the arena's addresses: it was forked with it, and has not become another program.
fn reads(pid: i32, arena: VirtRange) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    procfs::mappings(&maps).any(|mapping| mapping.has_file && arena.contains(mapping.range.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_asked_then_killed_and_then_the_next_one_is_asked() {
        assert_eq!(decide(false, None, 5), Act::Nothing);
        assert_eq!(decide(true, None, 5), Act::Ask);
        let asked = Some(Ending { pid: 1, asked_ns: 5, is_killed: false });
        assert_eq!(decide(true, asked, 5 + GRACE_NS - 1), Act::Nothing);
        assert_eq!(decide(false, asked, 5 + GRACE_NS), Act::Kill);
        let killed = asked.map(|it| Ending { is_killed: true, ..it });
        assert_eq!(decide(true, killed, 5 + 9 * GRACE_NS), Act::Nothing, "it is ending");
    }
}

//! A limit to what children cost their parent: private copies.
//!
//! As long as a child reads what was frozen, each page that the parent writes is there twice. `fork(2)` has the same price, and
//! a program that saves under heavy writes may need twice its memory. Who cannot have that sets a limit: beyond it the
//! youngest child that still reads is asked to end, and ended if it does not. The program goes on, and sees a child that a
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

use cowslip_sys::procfs;
use cowslip_sys::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{Errno, process};

use super::state::{Chunk, Shared, State};

/// So often copies are counted while somebody reads.
const LOOK: Duration = Duration::from_millis(10);
const GRACE_NS: u64 = 1_000_000_000;
/// More children than this are looked through for such as have ended.
const MANY: usize = 64;
const NO_LIMIT: u64 = u64::MAX;

/// The limit, and whom it may cost their lives.
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

/// What to do now.
#[derive(PartialEq, Eq, Debug)]
enum Act {
    Nothing,
    Ask,
    Kill,
}

/// `ending` is a child that was asked and has not ended.
fn decide(is_over: bool, ending: Option<Ending>, now_ns: u64) -> Act {
    match ending {
        Some(it) if it.is_killed || now_ns.saturating_sub(it.asked_ns) < GRACE_NS => Act::Nothing,
        Some(_) => Act::Kill,
        None if is_over => Act::Ask,
        None => Act::Nothing,
    }
}

impl CopyLimit {
    fn limit(&self) -> Option<u64> {
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

    /// Has `tell` called with the id of each child that is ended. The first of several is.
    pub(crate) fn on_child_ended(&self, tell: fn(i32)) {
        let _ = self.tell.set(tell);
    }

    /// Whether one chunk more, held twice, might exceed the limit.
    pub(crate) fn is_near(&self, shared: &Shared, state: &State) -> bool {
        let below = |limit: u64| limit.saturating_sub(2 * CHUNK_BYTES as u64);
        self.limit().is_some_and(|limit| copies_exceed(shared, state, below(limit)))
    }

    /// `pid` was forked just now.
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

    /// In a child, whose siblings they are.
    pub(crate) fn in_child(&self) {
        if let Ok(mut forked) = self.forked.try_lock() {
            *forked = Forked::default();
        }
    }

    /// Called while somebody reads: ends a child if there are too many copies. How soon to look again, if there is a limit.
    pub(crate) fn keep(&self, shared: &Shared, state: &State) -> Option<Duration> {
        let limit_bytes = self.limit()?;
        let now_ns = process::now_ns();
        let left_ns = self.next_look_ns.load(Relaxed).saturating_sub(now_ns);
        if left_ns > 0 {
            return Some(Duration::from_nanos(left_ns));
        }
        self.next_look_ns.store(now_ns + LOOK.as_nanos() as u64, Relaxed);
        let mut forked = self.forked();
        forked.ending = forked.ending.filter(|it| process::is_running_child(it.pid));
        let is_over = forked.ending.is_none() && copies_exceed(shared, state, limit_bytes);
        match decide(is_over, forked.ending, now_ns) {
            Act::Nothing => {}
            Act::Ask => {
                forked.pids.retain(|&pid| process::is_running_child(pid));
                let youngest = forked.pids.iter().rev().find(|&&pid| reads(pid, shared.range));
                if let Some(&pid) = youngest
                    && process::end(pid, false).is_ok()
                {
                    shared.counters.ended_children.fetch_add(1, Relaxed);
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

/// Whether what is held for readers alone comes to more than this: private copies of what is frozen, and places that were
/// moved out of.
fn copies_exceed(shared: &Shared, state: &State, limit_bytes: u64) -> bool {
    let page_bytes = page_size_bytes() as u64;
    let vacated_bytes = state.files.vacated_bytes();
    let Some(limit_bytes) = limit_bytes.checked_sub(vacated_bytes) else { return true };
    // Cheap, and no less than they are.
    if process::anonymous_pages().is_some_and(|pages| pages * page_bytes <= limit_bytes) {
        return false;
    }
    let most = limit_bytes / page_bytes;
    count(shared, state, most).is_ok_and(|pages| pages > most)
}

fn count(shared: &Shared, state: &State, most: u64) -> Result<u64, Errno> {
    let Some(service) = shared.service(state) else { return Ok(0) };
    let (mut pages, mut from) = (0, 0);
    while let Some(run) = state.next_run(from, usize::MAX, Chunk::is_private) {
        from = run.end;
        for (piece, _) in state.pieces(shared.chunk_range(run.start, run.len())) {
            pages += service.scanner.count_private(piece, most.saturating_sub(pages))?;
            if pages > most {
                return Ok(pages);
            }
        }
    }
    Ok(pages)
}

/// Whether the process has memory at the arena's addresses: it was forked with it, and has not become another program.
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

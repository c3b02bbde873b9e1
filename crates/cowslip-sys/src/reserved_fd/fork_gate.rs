//! Keeps changes of the table and forks apart.
//!
//! ```text
//!                ┌─────────▶ 0 ◀─────────┐
//!   changes: 1, 2, … ◀─── state ───▶ -1, -2, …: forks
//! ```
//! A child would otherwise inherit a descriptor that another thread has opened and not entered in the table yet, and
//! never close it. The same holds for one that is being closed: fork(2) copies the descriptors before the memory with the
//! table. A change takes microseconds, with signals blocked, because a handler may fork.
//!
//! Waits are bounded. A child of `vfork(2)`, which shares this memory, may be killed in the middle of a change, and a
//! handler that runs in the middle of a fork may make one: after the wait both go on without the gate.

use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use core::time::Duration;

use crate::process::{self, BlockedSignals};
use crate::waiting;

static STATE: AtomicI32 = AtomicI32::new(0);

const CHANGE: i32 = 1;
const FORK: i32 = -1;

const NAP: Duration = Duration::from_micros(20);
const PATIENCE_NS: u64 = 1_000_000_000;

/// A change or a fork that the gate counts.
struct Passage(i32);

impl Passage {
    /// `None` if the other side took too long.
    fn enter(step: i32) -> Option<Self> {
        let mut until_ns = None;
        loop {
            let may = |state: i32| (state * step >= 0).then_some(state + step);
            if STATE.fetch_update(Relaxed, Relaxed, may).is_ok() {
                return Some(Self(step));
            }
            let now_ns = process::now_ns();
            if now_ns > *until_ns.get_or_insert(now_ns + PATIENCE_NS) {
                return None;
            }
            if waiting::nap(NAP).is_err() {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        STATE.fetch_sub(self.0, Relaxed);
    }
}

/// Calls `change` while no thread forks.
pub(super) fn changing<T>(change: impl FnOnce() -> T) -> T {
    let _blocked = BlockedSignals::enter();
    let _passage = Passage::enter(CHANGE);
    change()
}

/// While it lives, no thread [opens](super::ReservedFd::open) a descriptor of ours or closes one. Made right before a
/// fork, after every lock that a thread may hold while it does so.
pub struct ForkGate(Option<Passage>);

impl ForkGate {
    /// Waits until no thread opens or closes a descriptor.
    pub fn close() -> Self {
        Self(Passage::enter(FORK))
    }

    /// In the child, before it uses a descriptor of ours: closes those that are for the parent alone, except for those
    /// that were [claimed](super::ReservedFd::claim). With `shares_descriptors` (`CLONE_FILES`) all stay open, and the
    /// child never closes one that it has inherited.
    pub fn begin_child(self, shares_descriptors: bool) {
        super::table::begin_child(shares_descriptors);
        // Other threads' passages are not in this process.
        core::mem::forget(self.0);
        STATE.store(0, Relaxed);
    }
}

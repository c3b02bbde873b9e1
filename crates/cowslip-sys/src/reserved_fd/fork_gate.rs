//! Keeps changes of the table apart from forks, and from closings by numbers that the program does not know.
//!
//! ```text
//!                ┌─────────▶ 0 ◀─────────┐
//!   changes: 1, 2, … ◀─── state ───▶ -1, -2, …: forks, closings
//! ```
//! A child would otherwise inherit a descriptor that another thread has opened and not entered in the table yet, and
//! never close it. The same holds for one that is being closed: fork(2) copies the descriptors before the memory with the
//! table. A change takes microseconds, with signals blocked, because a handler may fork.
//!
//! In the middle of a change a descriptor has the lowest free number. A program that closes all numbers closes it, and
//! opens a file there, which the change would close.
//!
//! Waits are bounded. A child of `vfork(2)`, which shares this memory, may be killed in the middle of a change; a child
//! forked without our knowledge has the state of that moment; a handler that runs in the middle of a fork may make a
//! change. After the wait the state is that of a new epoch, without the passages of the one before.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use core::time::Duration;

use crate::process::{self, BlockedSignals};
use crate::waiting;
use crate::{BorrowedFd, RawFd};

/// The epoch in the upper half, the number of passages in the lower. Its section keeps it beside what else a fork writes.
#[unsafe(link_section = "cowslip_fork_data")]
static STATE: AtomicU64 = AtomicU64::new(0);

const CHANGE: i32 = 1;
const FORK: i32 = -1;

/// The first nap of a wait. Each is twice as long as the last: a change takes microseconds, a fork milliseconds.
const NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(640);
const PATIENCE_NS: u64 = 1_000_000_000;
/// A few changes take less, even where threads wait for a processor.
const CHANGES_NS: u64 = 50_000_000;

/// The thread that last began a change, which may close a descriptor by libc's function in its middle. Thread-local data
/// may need a lock of the dynamic linker, which a forked child would find taken.
#[unsafe(link_section = "cowslip_fork_data")]
static CHANGER: AtomicUsize = AtomicUsize::new(0);

fn pack(epoch: u32, passages: i32) -> u64 {
    u64::from(epoch) << 32 | u64::from(passages as u32)
}

fn unpack(state: u64) -> (u32, i32) {
    ((state >> 32) as u32, state as u32 as i32)
}

/// A change, a fork or a closing that the gate counts.
struct Passage {
    epoch: u32,
    step: i32,
}

impl Passage {
    fn enter(step: i32) -> Self {
        let (mut until_ns, mut nap) = (None, NAP);
        loop {
            let state = STATE.load(Relaxed);
            let (mut epoch, passages) = unpack(state);
            let mut next = passages + step;
            if passages * step < 0 {
                let now_ns = process::now_ns();
                if now_ns <= *until_ns.get_or_insert(now_ns + PATIENCE_NS) {
                    if waiting::nap(nap).is_err() {
                        std::thread::yield_now();
                    }
                    nap = (2 * nap).min(LONGEST_NAP);
                    continue;
                }
                (epoch, next) = (epoch.wrapping_add(1), step);
            }
            if STATE.compare_exchange(state, pack(epoch, next), Acquire, Relaxed).is_ok() {
                return Self { epoch, step };
            }
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let _ = STATE.fetch_update(Release, Relaxed, |state| {
            let (epoch, passages) = unpack(state);
            (epoch == self.epoch).then(|| pack(epoch, passages - self.step))
        });
    }
}

/// Calls `change` while no thread forks.
pub(super) fn changing<T>(change: impl FnOnce() -> T) -> T {
    let _blocked = BlockedSignals::enter();
    let _passage = Passage::enter(CHANGE);
    BEGUN.fetch_add(1, SeqCst);
    let thread = process::thread_handle();
    CHANGER.store(thread, Relaxed);
    let result = change();
    let _ = CHANGER.compare_exchange(thread, 0, Relaxed, Relaxed);
    result
}

/// Calls `call`, which closes or opens descriptors by number for the program, while no thread opens or closes one of
/// ours. `errno` is that of `call`.
pub fn between_changes<T>(call: impl FnOnce() -> T) -> T {
    let mut blocked = BlockedSignals::enter();
    let passage = Passage::enter(FORK);
    let result = call();
    blocked.keep_errno();
    drop(passage);
    result
}

/// Returns true if `fd` is no open descriptor of the program's: it may be one that a change of ours has open for a
/// moment. Closing such a number is `EBADF`. A call that opens it does so [between changes](between_changes). Changes
/// of other threads are waited for, some milliseconds at most; false in the middle of one of this thread's.
pub fn is_free(fd: RawFd) -> bool {
    if fd < 0 || CHANGER.load(Relaxed) == process::thread_handle() {
        return fd < 0;
    }
    // SAFETY: asks for a flag of a number, which need not be open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    loop {
        let begun = BEGUN.load(SeqCst);
        let is_awaited = await_changes();
        let is_free = rustix::io::fcntl_getfd(fd) == Err(rustix::io::Errno::BADF);
        if !is_awaited || begun == BEGUN.load(SeqCst) {
            return is_free;
        }
    }
}

/// Waits for changes that are under way, some milliseconds at most. Returns false if it waits for none.
fn await_changes() -> bool {
    let (mut until_ns, mut nap) = (None, NAP);
    while unpack(STATE.load(SeqCst)).1 > 0 {
        let begun = BEGUN.load(SeqCst);
        let now_ns = process::now_ns();
        if begun == ENDLESS.load(Relaxed) || now_ns > *until_ns.get_or_insert(now_ns + CHANGES_NS) {
            // In a child forked without our knowledge the change never ends.
            ENDLESS.store(begun, Relaxed);
            return false;
        }
        if waiting::nap(nap).is_err() {
            std::thread::yield_now();
        }
        nap = (2 * nap).min(LONGEST_NAP);
    }
    true
}

/// The value of [`BEGUN`] when [`await_changes`] last waited in vain.
static ENDLESS: AtomicU64 = AtomicU64::new(0);

/// Changes that have begun: each is counted once it is in [`STATE`], before it opens anything.
#[unsafe(link_section = "cowslip_fork_data")]
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// While it lives, no thread [opens](super::ReservedFd::open) a descriptor of ours or closes one. Made right before a
/// fork, after every lock that a thread may hold while it does so.
pub struct ForkGate(Passage);

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
        // Passages of other threads count no more.
        STATE.store(pack(self.0.epoch.wrapping_add(1), 0), Relaxed);
        core::mem::forget(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passage_that_never_ends_is_waited_for_once() {
        let lost = Passage::enter(CHANGE);
        let began_ns = process::now_ns();
        drop(ForkGate::close());
        assert!(process::now_ns() - began_ns >= PATIENCE_NS);
        drop(lost);
        assert_eq!(unpack(STATE.load(Relaxed)).1, 0, "the next fork does not wait");
        let lost = Passage::enter(CHANGE);
        let began_ns = process::now_ns();
        (0..1000).for_each(|_| assert!(is_free(RawFd::MAX)));
        let waited_ns = process::now_ns() - began_ns;
        assert!((CHANGES_NS..PATIENCE_NS).contains(&waited_ns), "{waited_ns}");
        drop(lost);
    }
}

//! Forks that have to fail: each thread finds its own.
//!
//! A handler of `pthread_atfork` cannot refuse a fork. It records here why the fork must fail, under the forking
//! thread's handle, which its copy in the child has too.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use cowslip_sys::{Errno, process};

/// The most threads that may have a refused fork at the same moment.
const SLOTS: usize = 64;

struct Slot {
    thread: AtomicUsize,
    errno: AtomicI32,
}

static REFUSALS: [Slot; SLOTS] =
    [const { Slot { thread: AtomicUsize::new(0), errno: AtomicI32::new(0) } }; SLOTS];

/// Refuses the fork that this thread is about to make. Returns false if there is no room to record it.
pub(crate) fn record(errno: Errno) -> bool {
    let me = process::thread_handle();
    let free = |slot: &&Slot| slot.thread.compare_exchange(0, me, Relaxed, Relaxed).is_ok();
    let slot = REFUSALS.iter().find(free);
    if let Some(slot) = slot {
        slot.errno.store(errno.raw_os_error(), Relaxed);
    }
    slot.is_some()
}

/// Returns why this thread's fork is refused, if it is, and forgets it.
pub(crate) fn take() -> Option<Errno> {
    let me = process::thread_handle();
    let slot = REFUSALS.iter().find(|slot| slot.thread.load(Relaxed) == me)?;
    let errno = slot.errno.load(Relaxed);
    slot.thread.store(0, Relaxed);
    Some(Errno::from_raw_os_error(errno))
}

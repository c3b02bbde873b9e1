//! Forks that have to fail: each thread finds its own.
//!
//! A handler of `pthread_atfork` cannot refuse a fork. It notes here, under the forking thread's handle,
//! which its copy in the child has too, why the fork must not be seen to succeed.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use cowslip_sys::{Errno, process};

/// Threads whose forks may be refused at the same moment.
const SLOTS: usize = 64;

struct Slot {
    thread: AtomicUsize,
    errno: AtomicI32,
}

static REFUSED: [Slot; SLOTS] =
    [const { Slot { thread: AtomicUsize::new(0), errno: AtomicI32::new(0) } }; SLOTS];

/// Refuses the fork that this thread is about to make. `false`: there is no room to note it.
pub(crate) fn refuse(errno: Errno) -> bool {
    let me = process::thread_handle();
    let free = |slot: &&Slot| slot.thread.compare_exchange(0, me, Relaxed, Relaxed).is_ok();
    let slot = REFUSED.iter().find(free);
    if let Some(slot) = slot {
        slot.errno.store(errno.raw_os_error(), Relaxed);
    }
    slot.is_some()
}

/// Whether this thread's fork is refused, and why; once.
pub(crate) fn take() -> Option<Errno> {
    let me = process::thread_handle();
    let slot = REFUSED.iter().find(|slot| slot.thread.load(Relaxed) == me)?;
    let errno = slot.errno.load(Relaxed);
    slot.thread.store(0, Relaxed);
    Some(Errno::from_raw_os_error(errno))
}

//! The service threads of the arenas: their number, their start, and their renewal.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use cowslip::raw::Departure;
use cowslip_sys::Errno;
use cowslip_sys::outside;
use cowslip_sys::process::BlockedSignals;
use cowslip_sys::procfs::own;

use crate::arena::detach;
use crate::arena::registry::{arenas, owned};
use crate::arena::setup_state::is_closed;
use crate::rt::guard::guarded;
use crate::rt::log::say;

/// The number of service threads in this process.
pub(crate) fn count() -> u64 {
    arenas().filter(|arena| arena.raw().has_service()).count() as u64
}

/// Returns true if the calling thread is known to be the program's only one.
pub(crate) fn is_sole() -> bool {
    let _blocked = BlockedSignals::enter();
    // Where the program filters its calls, none is made to find out.
    !is_closed() && is_alone()
}

/// Like [`is_sole`], even where the program filters its calls. Signals are blocked.
pub(crate) fn is_alone() -> bool {
    // A service thread that starts or ends meanwhile is missing from one of the two counts.
    let before = count();
    own::thread_count().is_some_and(|threads| threads <= 1 + before.min(count()))
}

/// A service thread failed to start at the last attempt.
static HAS_NO_SERVICE: AtomicBool = AtomicBool::new(false);

/// Starts the service threads that are not running.
pub(crate) fn start_all() {
    if is_closed() {
        return;
    }
    start(|| {
        renew_stale();
        let refused = owned().filter(|arena| !arena.raw().start_service()).count();
        HAS_NO_SERVICE.store(refused > 0, Ordering::Relaxed);
    });
}

/// Service threads are being started.
static STARTING: AtomicBool = AtomicBool::new(false);

/// Called in a child: the thread that was starting some, if any, does not exist here.
pub(crate) fn begin_child() {
    // Written only when it changes: a write copies the page.
    if STARTING.load(Ordering::Relaxed) {
        STARTING.store(false, Ordering::Relaxed);
    }
}

/// Calls `start`, which starts service threads, unless this is the `pthread_create` of such a start.
pub(crate) fn start(start: impl FnOnce()) {
    if !STARTING.swap(true, Ordering::Relaxed) {
        start();
        STARTING.store(false, Ordering::Relaxed);
    }
}

/// Returns true if a service thread failed to start at the last attempt.
pub(crate) fn is_lacking() -> bool {
    HAS_NO_SERVICE.load(Ordering::Relaxed)
}

/// Called after a fork, or the start of a thread, was refused. Returns true if it may succeed now:
/// a limit that leaves room for one more task has it in use for a service thread. That ends, and
/// all memory is the kernel's from then on. A call that was refused for another reason, such as a
/// stack that is too large, changes nothing.
pub(crate) fn gives_way(errno: Errno) -> bool {
    if errno != Errno::AGAIN
        || STARTING.load(Ordering::Relaxed)
        || count() == 0
        || outside::is_task_allowed()
    {
        return false;
    }
    let end = || {
        say!("a limit leaves no task beside the service thread, which ends");
        let _ = detach::all(Departure::NoThaw);
        arenas().for_each(|arena| {
            drop(arena.raw().park_service());
            arena.raw().retire();
        });
    };
    let _blocked = BlockedSignals::enter();
    guarded(end, || ());
    count() == 0
}

/// The service threads may have rights that a thread of the program gave up.
static ARE_STALE: AtomicBool = AtomicBool::new(false);

/// Has the service threads be replaced before the next fork.
pub(crate) fn mark_stale() {
    ARE_STALE.store(true, Ordering::Relaxed);
}

/// Called before service threads are started: ends those that may have other rights than this thread.
fn renew_stale() {
    if ARE_STALE.swap(false, Ordering::Relaxed) {
        owned().for_each(|arena| arena.raw().retire());
    }
}

/// Has the arenas watch for the end of a child.
pub(crate) fn watch_child(pid: c_int) {
    if is_closed() {
        return;
    }
    owned().for_each(|arena| arena.raw().watch_child(pid));
}

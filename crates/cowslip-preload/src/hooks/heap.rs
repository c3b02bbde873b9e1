//! The functions by which the bundled malloc and this library know each other, beside those of threads
//! ([`crate::hooks::pthread`]).

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

use cowslip_sys::process::{self, BlockedSignals};

use crate::arena::registry::{arenas, owned};
use crate::arena::{ownership, service};
use crate::rt::fork_state::is_own_process;
use crate::rt::next_symbol::NextSymbol;

static AT_REST: NextSymbol = NextSymbol::new(c"cowslip_at_rest");

/// Called by the constructor: has the service thread call the bundled malloc, if that is there.
pub(crate) fn begin() {
    AT_REST.get();
    if !AT_REST.known().is_null() {
        cowslip::raw::call_at_rest(at_rest);
    }
}

fn at_rest() {
    // SAFETY: the bundled malloc's function of that name has this type.
    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(AT_REST.known())() };
}

/// The process that started threads before it had an arena, or was held without a service thread; else 0.
static EARLY_THREADS: AtomicI32 = AtomicI32::new(0);

/// Has the next allocation start the service thread: a thread was started without an arena, or memory is frozen.
pub(crate) fn note_thread() {
    EARLY_THREADS.store(process::pid(), Relaxed);
}

/// Calls of [`cowslip_allocates`] in this process and, before the fork, in its parent.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// Calls after which a program with one thread gets a service thread too: so much memory is worth huge pages, and worth
/// giving back once freed. A small program keeps its one thread.
const MANY_CALLS: u32 = 64;

/// Called by the bundled malloc once for each MiB that is allocated, without a lock of its own. Starts the service thread
/// of a program with threads older than its arena, or with one thread and much memory. Starts none in a process that
/// shares its parent's memory (`vfork(2)`).
#[unsafe(no_mangle)]
extern "C" fn cowslip_allocates() {
    let has_early_threads = EARLY_THREADS.load(Relaxed) == process::pid();
    let are_many = CALLS.fetch_add(1, Relaxed).wrapping_add(1).is_multiple_of(MANY_CALLS);
    let may_start = has_early_threads || are_many && is_own_process();
    if !may_start || arenas().next().is_none() {
        return;
    }
    let _blocked = BlockedSignals::enter();
    if has_early_threads {
        start_service();
    } else if owned().next().is_some() && service::count() == 0 {
        service::start_all();
    }
}

/// Starts the service thread of a program with threads older than its arena. Signals are blocked.
pub(crate) fn start_service() {
    EARLY_THREADS.store(0, Relaxed);
    ownership::adopt_all();
    service::start_all();
}

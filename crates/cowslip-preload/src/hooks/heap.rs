//! The functions by which the bundled malloc and this library know each other, beside those of threads
//! ([`crate::hooks::pthread`]).

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use cowslip_sys::process::{self, BlockedSignals};

use crate::arena::registry::arenas;
use crate::arena::{ownership, service};
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

/// The process that started threads before it had an arena; else 0.
static EARLY_THREADS: AtomicI32 = AtomicI32::new(0);

/// Called when a thread was started without an arena.
pub(crate) fn note_thread() {
    EARLY_THREADS.store(process::pid(), Relaxed);
}

/// Called by the bundled malloc now and then, without a lock of its own: starts the service thread of a program whose
/// threads were there before its arena. A program with one thread gets none by this.
#[unsafe(no_mangle)]
extern "C" fn cowslip_allocates() {
    if EARLY_THREADS.load(Relaxed) != process::pid() || arenas().next().is_none() {
        return;
    }
    EARLY_THREADS.store(0, Relaxed);
    let _blocked = BlockedSignals::enter();
    ownership::adopt_all();
    service::start_all();
}

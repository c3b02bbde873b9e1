//! The constructor of this library, and its destructor.

use cowslip_sys::process::{self, BlockedSignals};

use crate::arena::report;
use crate::branch::socket;
use crate::hooks::{atfork, exec, heap};
use crate::rt::config::config;
use crate::rt::log::say;
use crate::rt::{environment, next_symbol};

/// Sets up early, in the first thread, if no call came before.
#[unsafe(link_section = ".init_array")]
#[used]
static INIT: extern "C" fn() = {
    extern "C" fn init() {
        let _blocked = BlockedSignals::enter();
        if !config().off {
            say!("loaded");
        }
        begin_interposers();
        atfork::register();
        next_symbol::resolve_all();
        heap::begin();
        // The first reading of the clock looks up the kernel's function for it, through libc.
        process::now_ns();
        exec::begin();
        environment::hide();
    }
    init
};

/// Has a profiler's functions for memory look up those that they call. A lookup that fails keeps a message, which the
/// next one frees: by a `free` whose first call is a lookup, which frees it again.
fn begin_interposers() {
    // SAFETY: a block of libc's functions, which is freed here. No lock of this library is held.
    unsafe {
        let block = core::hint::black_box(libc::calloc(1, 1));
        let larger = core::hint::black_box(libc::realloc(block, 2));
        libc::free(if larger.is_null() { block } else { larger });
    }
}

#[unsafe(link_section = ".fini_array")]
#[used]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn at_exit() {
        let _blocked = BlockedSignals::enter();
        report::write();
        socket::end();
    }
    at_exit
};

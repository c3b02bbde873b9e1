//! The constructor of this library, and its destructor.

use cowslip_sys::process::{self, BlockedSignals};

use crate::arena::report;
use crate::branch::socket;
use crate::hooks::{
    atfork, clone, credentials, direct_io, exec, fork, futex, heap, lent_pages, open, posix_aio,
    proc_mem, pthread, recvmsg, stdio, xdp,
};
use crate::rt::config::config;
use crate::rt::environment;
use crate::rt::log::say;

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
        fork::resolve();
        pthread::resolve();
        heap::begin();
        clone::resolve();
        stdio::resolve();
        stdio::resolve_all();
        direct_io::resolve_all();
        open::resolve_all();
        posix_aio::resolve_all();
        recvmsg::resolve();
        lent_pages::resolve_all();
        xdp::resolve_all();
        futex::resolve_all();
        proc_mem::resolve_all();
        credentials::resolve_all();
        exec::resolve();
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

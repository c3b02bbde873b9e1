//! `fork`: inherited arenas are taken over and the service threads run before libc's fork, which calls the handlers of
//! [`atfork`](crate::hooks::atfork).
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_void};

use cowslip_sys::process::{self, BlockedSignals};

use crate::arena::{ownership, service};
use crate::rt::config::config;
use crate::rt::deferred_errno;
use crate::rt::next_symbol::next_symbol;

next_symbol! { FORK = c"fork" }

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> c_int {
    if config().off {
        // SAFETY: the program's own call.
        return unsafe { libc_fork() };
    }
    let blocked = BlockedSignals::enter();
    ownership::adopt_all();
    service::start_all();
    drop(blocked);
    // SAFETY: the program's own call.
    unsafe { fork_without_setup() }
}

/// # Safety
/// As for `fork(2)`.
unsafe fn libc_fork() -> c_int {
    // SAFETY: libc's symbol of that name has this type.
    let real =
        unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(FORK.get()) };
    // SAFETY: the caller promises it.
    unsafe { real() }
}

/// Forks without taking arenas over or starting service threads.
///
/// # Safety
/// As for `fork(2)`.
pub(crate) unsafe fn fork_without_setup() -> c_int {
    let mut blocked = BlockedSignals::enter();
    // SAFETY: the caller promises it.
    let mut pid = unsafe { libc_fork() };
    if pid < 0 && service::gives_way(cowslip_sys::errno::current()) {
        // SAFETY: as above.
        pid = unsafe { libc_fork() };
    }
    if pid < 0 {
        blocked.set_errno(cowslip_sys::errno::current());
    }
    if pid <= 0 {
        return pid;
    }
    if let Some(errno) = deferred_errno::take() {
        let _ = process::wait_for(pid);
        blocked.set_errno(errno);
        return -1;
    }
    service::watch_child(pid);
    pid
}

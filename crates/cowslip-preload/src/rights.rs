//! Rights: the service thread never has more of them than the program.
//!
//! Most of what a thread gives up, user ids by number, capabilities, a namespace, it gives up for itself alone; libc does so
//! for all threads, ours too. Programs with one thread rely on the first, as it is all they are. So the service thread
//! ends before such a call, and another starts after it, by the program's thread, whose rights it inherits. Calls that need
//! a process of one thread find one.
//!
//! The rights of a program with several threads are those of each of them: whoever has one has the memory of all. There the
//! service thread is replaced at the next fork, by the thread that forks.
//!
//! Filters of system calls are looked at in [`crate::filters`].
//!
//! # Safety
//! See [`crate::mapping`].

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use cowslip_sys::passthrough;
use cowslip_sys::process::BlockedSignals;

use crate::program::{self, config, owned};
use crate::{forking, say, threads};

/// The service threads may have rights that a thread of the program gave up.
static ARE_STALE: AtomicBool = AtomicBool::new(false);

/// Makes a call that changes the calling thread's rights.
pub(crate) fn change<T>(call: impl FnOnce() -> T) -> T {
    if config().off || !program::is_own_process() {
        return call();
    }
    let blocked = BlockedSignals::enter();
    if !threads::is_alone() {
        ARE_STALE.store(true, Ordering::Relaxed);
        drop(blocked);
        return call();
    }
    let parked: Vec<_> =
        owned().filter_map(|arena| Some((arena, arena.raw().park_service()?))).collect();
    drop(blocked);
    let answer = call();
    let _blocked = BlockedSignals::enter();
    for (arena, service) in parked {
        forking::start(|| {
            arena.raw().resume_service(service);
            say!("another service thread, as this thread's rights changed");
        });
    }
    answer
}

/// Before service threads are started: ends those that may have other rights than this thread.
pub(crate) fn renew() {
    if ARE_STALE.swap(false, Ordering::Relaxed) {
        owned().for_each(|arena| arena.raw().retire());
    }
}

/// True of what `prctl(2)` changes for the calling thread alone, and for good.
pub(crate) fn is_changed_by(option: c_int) -> bool {
    matches!(
        option,
        libc::PR_SET_NO_NEW_PRIVS
            | libc::PR_CAPBSET_DROP
            | libc::PR_SET_SECUREBITS
            | libc::PR_CAP_AMBIENT
            | libc::PR_SET_KEEPCAPS
    )
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    // SAFETY: the program's own call.
    change(|| unsafe { passthrough::setns(fd, kind) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    // SAFETY: the program's own call.
    change(|| unsafe { passthrough::capset(header, data) })
}

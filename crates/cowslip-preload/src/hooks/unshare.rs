//! Tables of descriptors: a thread may have one of its own (`unshare(2)`, `close_range(2)`), and so may a process that
//! shares this one's memory (`clone(2)` with `CLONE_VM` and without `CLONE_FILES`).
//!
//! An arena's descriptors are numbers in one table. In another table they are nothing, or files of the program's. All
//! memory therefore leaves before there are two tables. Where the program has one thread, the service thread ends
//! instead, and the next one is in the program's table again ([`credentials`]).
//!
//! A process made by `vfork(2)` has its parent's memory and numbers while the calling thread waits for it. It maps
//! memory from the kernel, because its descriptors are not its parent's.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::c_int;

use cowslip::raw::Departure;
use cowslip_sys::passthrough;
use cowslip_sys::process::BlockedSignals;

use crate::arena::setup_state::is_closed;
use crate::arena::{detach, service};
use crate::hooks::credentials;
use crate::rt::config::config;
use crate::rt::fork_state::is_own_process;
use crate::rt::guard::guarded;

/// `unshare(2)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    let call = || unsafe { passthrough::unshare(flags) };
    if flags & libc::CLONE_FILES != 0 {
        before_unshare();
    }
    // No thread can be started after these: the existing service thread stays.
    const FOR_CHILDREN: c_int = libc::CLONE_NEWPID | libc::CLONE_NEWTIME;
    if flags & FOR_CHILDREN != 0 && flags & libc::CLONE_NEWUSER == 0 {
        credentials::renounce();
        return call();
    }
    const NO_RIGHTS: c_int = libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SYSVSEM;
    if flags & !NO_RIGHTS == 0 {
        credentials::without_service(call)
    } else {
        credentials::change(call)
    }
}

/// Called before this thread gets a table of its own, in case others use this one.
fn before_unshare() {
    if config().off || is_closed() || !is_own_process() {
        return;
    }
    let _blocked = BlockedSignals::enter();
    if !service::is_alone() {
        detach_all();
    }
}

/// Called before a process or thread is made that shares this memory but not this table.
pub(crate) fn before_clone(flags: u64) {
    const SHARED: u64 = (libc::CLONE_FILES | libc::CLONE_VFORK) as u64;
    if flags & SHARED == 0 && !config().off && is_own_process() {
        detach_all();
    }
}

fn detach_all() {
    let _ = guarded(|| detach::all(Departure::Descriptors).is_ok(), || false);
}

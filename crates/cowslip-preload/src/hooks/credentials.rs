//! Rights: the service thread never has more of them than the program.
//!
//! User ids set by number, capabilities and namespaces belong to a thread: a call that gives them up affects the
//! calling thread alone. (libc's functions affect all threads, including ours.) A program with one thread relies on
//! that. The service thread therefore ends before such a call. The program's thread starts another one after it, which
//! inherits its rights. Calls that need a single-threaded process also succeed.
//!
//! In a program with several threads, each has the memory of all, and with it the rights of all. There the service
//! thread is replaced at the next fork, by the forking thread.
//!
//! # Inherited arenas
//! A child has descriptors of its parent's arenas, by which it takes them over once the parent is gone. With them it
//! could read and change later contents of the parent's memory, which a process with fewer rights must not be able to
//! do. It therefore [renounces](cowslip::raw::RawArena::renounce) them before such a call, and before libc's functions
//! too.
//!
//! [`crate::hooks::seccomp`] handles filters of system calls.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_char, c_int, c_void};

use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::procfs::own;
use cowslip_sys::{passthrough, tmpfs};
use libc::{gid_t, uid_t};

use crate::arena::registry::{arenas, owned};
use crate::arena::{ownership, service};
use crate::rt::config::config;
use crate::rt::fork_state::{self, is_own_process};
use crate::rt::log::say;
use crate::rt::next_symbol::interpose;

/// Makes a call that changes the calling thread's rights.
pub(crate) fn change<T>(call: impl FnOnce() -> T) -> T {
    renounce();
    without_service(call)
}

/// Makes a call after which the calling thread differs from others, without a service thread. One starts after it.
pub(crate) fn without_service<T>(call: impl FnOnce() -> T) -> T {
    if config().off || !is_own_process() {
        return call();
    }
    let blocked = BlockedSignals::enter();
    if own::thread_count().is_none() {
        // There is no /proc, as in another root: threads are not counted, and no other service thread could look at pages.
        owned().for_each(|arena| drop(arena.raw().park_service()));
        drop(blocked);
        return call();
    }
    if !service::is_alone() {
        service::mark_stale();
        drop(blocked);
        return call();
    }
    let parked: Vec<_> =
        owned().filter_map(|arena| Some((arena, arena.raw().park_service()?))).collect();
    drop(blocked);
    let answer = call();
    let _blocked = BlockedSignals::enter();
    for (arena, service) in parked {
        service::start(|| {
            arena.raw().resume_service(service);
            say!("another service thread, as this thread's rights changed");
        });
    }
    answer
}

/// Gives up all access to later memory of this process' parents, unless it owns the arenas that it inherited.
pub(crate) fn renounce() {
    if config().off {
        return;
    }
    // This comes first: a signal handler may come here too, and wait for a lock that this thread holds.
    let _blocked = BlockedSignals::enter();
    if !is_own_process() || arenas().all(|arena| !arena.raw().is_reader()) {
        return;
    }
    ownership::adopt_all();
    let inherited = arenas().filter(|arena| arena.raw().is_reader());
    let failed = inherited.filter_map(|arena| arena.raw().renounce().err());
    for error in failed {
        say!("{error}");
    }
    // The mount may be in use by a service thread, or be the parent's too.
    let is_alone = || service::is_alone() || process::is_single_threaded();
    if service::count() == 0 && is_alone() && !fork_state::shares_descriptors() {
        tmpfs::close();
    }
}

/// Returns true if the process made by a `clone(2)` with these flags, without `CLONE_VM`, must renounce.
pub(crate) fn are_changed_by_clone(flags: u64) -> bool {
    const NAMESPACES: c_int = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    flags & NAMESPACES as u64 != 0
}

interpose! {
    [setuid seteuid setfsuid](user: uid_t) -> c_int, if true => renounce();
    [setgid setegid setfsgid](group: gid_t) -> c_int, if true => renounce();
    [setreuid](real: uid_t, effective: uid_t) -> c_int, if true => renounce();
    [setregid](real: gid_t, effective: gid_t) -> c_int, if true => renounce();
    [setresuid](real: uid_t, effective: uid_t, saved: uid_t) -> c_int, if true => renounce();
    [setresgid](real: gid_t, effective: gid_t, saved: gid_t) -> c_int, if true => renounce();
    [setgroups](count: usize, groups: *const gid_t) -> c_int, if true => renounce();
    [initgroups](name: *const c_char, group: gid_t) -> c_int, if true => renounce();
}

/// Returns true for a `prctl(2)` that changes rights of the calling thread.
pub(crate) fn is_changed_by(option: c_int, argument: usize) -> bool {
    match option {
        libc::PR_SET_NO_NEW_PRIVS
        | libc::PR_CAPBSET_DROP
        | libc::PR_SET_SECUREBITS
        | libc::PR_SET_KEEPCAPS => true,
        libc::PR_CAP_AMBIENT => argument != libc::PR_CAP_AMBIENT_IS_SET as usize,
        _ => false,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    // SAFETY: the program's own call.
    let call = || unsafe { passthrough::setns(fd, kind) };
    // It concerns only children, and no thread can be started after it.
    if kind == libc::CLONE_NEWPID { call() } else { change(call) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    // SAFETY: the program's own call.
    change(|| unsafe { passthrough::capset(header, data) })
}

//! Rights: the service thread never has more of them than the program.
//!
//! User ids by number, capabilities and namespaces are a thread's own: a call that gives them up acts on the calling thread
//! alone. (libc's functions act on all threads, ours too.) A program with one thread relies on that. The service thread ends
//! before such a call. Another starts after it, by the program's thread, and inherits the rights of that. Calls that need a
//! process of one thread find one.
//!
//! In a program with several threads each has the memory of all, and with it the rights of all. There the service thread is
//! replaced at the next fork, by the thread that forks.
//!
//! # Inherited arenas
//! A child has descriptors of its parent's arenas, by which it takes them over once the parent is gone. With them it could read
//! and change what the parent's memory holds later, which a process with fewer rights must not be able to. So it
//! [renounces](cowslip::raw::RawArena::renounce) them before such a call, libc's functions too.
//!
//! Filters of system calls are looked at in [`crate::filters`].
//!
//! # Safety
//! See [`crate::mapping`].

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use cowslip_sys::process::BlockedSignals;
use cowslip_sys::{memfile, passthrough};
use libc::{gid_t, uid_t};

use crate::next::in_front_of;
use crate::program::{self, arenas, config, owned};
use crate::{forking, making, say, threads};

/// The service threads may have rights that a thread of the program gave up.
static ARE_STALE: AtomicBool = AtomicBool::new(false);

/// Makes a call that changes the calling thread's rights.
pub(crate) fn change<T>(call: impl FnOnce() -> T) -> T {
    renounce();
    without_service(call)
}

/// Makes a call after which the calling thread differs from others, while there is no service thread. One starts after it.
pub(crate) fn without_service<T>(call: impl FnOnce() -> T) -> T {
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

/// Gives up every way to later memory of this process' parents, if it does not own the arenas that it inherited.
pub(crate) fn renounce() {
    if config().off {
        return;
    }
    // First: a signal's handler may come here too, and wait for a lock that this thread has.
    let _blocked = BlockedSignals::enter();
    if !program::is_own_process() || arenas().all(|it| !it.raw().is_reader()) {
        return;
    }
    making::adopt_all();
    let inherited = arenas().filter(|arena| arena.raw().is_reader());
    let failed = inherited.filter_map(|arena| arena.raw().renounce().err());
    for error in failed {
        say!("{error}");
    }
    // The mount may be in use by a service thread, or be the parent's too.
    if threads::ours() == 0 && threads::is_alone() && !forking::shares_descriptors() {
        memfile::close_mount();
    }
}

/// Before a process that shares no memory with this one is made by `clone(2)`: true if it is to renounce.
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

in_front_of! {
    setuid(user: uid_t) -> c_int, if true => renounce();
    setgid(group: gid_t) -> c_int, if true => renounce();
    seteuid(user: uid_t) -> c_int, if true => renounce();
    setegid(group: gid_t) -> c_int, if true => renounce();
    setreuid(real: uid_t, effective: uid_t) -> c_int, if true => renounce();
    setregid(real: gid_t, effective: gid_t) -> c_int, if true => renounce();
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int, if true => renounce();
    setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int, if true => renounce();
    setfsuid(user: uid_t) -> c_int, if true => renounce();
    setfsgid(group: gid_t) -> c_int, if true => renounce();
    setgroups(count: usize, groups: *const gid_t) -> c_int, if true => renounce();
    initgroups(name: *const c_char, group: gid_t) -> c_int, if true => renounce();
}

/// Before service threads are started: ends those that may have other rights than this thread.
pub(crate) fn renew() {
    if ARE_STALE.swap(false, Ordering::Relaxed) {
        owned().for_each(|arena| arena.raw().retire());
    }
}

/// True of a `prctl(2)` that changes rights of the calling thread.
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
    // It concerns children, and after it no thread can be started.
    if kind == libc::CLONE_NEWPID { call() } else { change(call) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    // SAFETY: the program's own call.
    change(|| unsafe { passthrough::capset(header, data) })
}

//! Forks by other means: `_Fork`, `clone` and `syscall(SYS_clone, …)` without `CLONE_VM`.
//!
//! No handlers run in such forks, so ours are called here.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_long, c_void};
use core::ptr;

use cowslip_sys::process::BlockedSignals;
use cowslip_sys::{passthrough, user_memory};

use crate::arena::service;
use crate::hooks::atfork::{in_child, in_parent, prepare, set_flags};
use crate::hooks::{futex, unshare};
use crate::rt::config::config;
use crate::rt::deferred_errno;
use crate::rt::next_symbol::next_symbol;

/// Forks by `call`, which gets these flags of `clone(2)` and returns 0 in the child if it returns there at all.
fn forked(blocked: &mut BlockedSignals, flags: u64, call: impl Fn() -> c_long) -> c_long {
    prepare();
    if let Some(errno) = deferred_errno::take() {
        blocked.set_errno(errno);
        return -1;
    }
    set_flags(flags);
    let pid = call();
    if pid == 0 {
        in_child();
        return 0;
    }
    let refused = (pid < 0).then(cowslip_sys::errno::current);
    set_flags(0);
    in_parent();
    match refused {
        None => service::watch_child(pid as c_int),
        Some(errno) if service::gives_way(errno) => return forked(blocked, flags, call),
        Some(errno) => blocked.set_errno(errno),
    }
    pid
}

next_symbol! { FORK = c"_Fork" }
next_symbol! { CLONE = c"clone" }

#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> c_int {
    // SAFETY: libc's symbol of that name has this type.
    let real =
        unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(FORK.get()) };
    // SAFETY: the program's own call.
    let call = || unsafe { real() };
    if config().off {
        return call();
    }
    forked(&mut BlockedSignals::enter(), 0, || call().into()) as c_int
}

type Main = extern "C" fn(*mut c_void) -> c_int;

/// Passed to a cloned child, which reads it from its copy of the caller's stack.
struct Start {
    main: Main,
    argument: *mut c_void,
    /// The caller's guard, which blocks signals until it is dropped, on either side.
    blocked: *const BlockedSignals,
}

extern "C" fn begin(start: *mut c_void) -> c_int {
    // SAFETY: `clone` below passes this; the child has a copy of the memory it is in, and never returns
    // to the frame that would drop its copy of the guard.
    let (Start { main, argument, .. }, blocked) = unsafe {
        let start = start.cast::<Start>().read();
        let blocked = start.blocked.read();
        (start, blocked)
    };
    in_child();
    drop(blocked);
    main(argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    main: Main,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    type Clone = unsafe extern "C" fn(
        Main,
        *mut c_void,
        c_int,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
    ) -> c_int;
    // SAFETY: libc's symbol of that name takes these, the last three if the flags ask for them.
    let real = unsafe { core::mem::transmute::<*mut c_void, Clone>(CLONE.get()) };
    if flags & libc::CLONE_VM != 0 {
        unshare::before_clone(flags as u32 as u64);
        futex::before_clone(flags as u32 as u64, child_tid as usize, tls as usize);
    }
    if flags & libc::CLONE_VM != 0 || config().off {
        // SAFETY: the program's own call.
        return unsafe { real(main, stack, flags, argument, parent_tid, tls, child_tid) };
    }
    let mut blocked = BlockedSignals::enter();
    let start = Start { main, argument, blocked: ptr::from_ref(&blocked) };
    let start = ptr::from_ref(&start).cast_mut().cast();
    // SAFETY: the program's own call, by way of `begin`.
    let call = || unsafe { real(begin, stack, flags, start, parent_tid, tls, child_tid) };
    forked(&mut blocked, flags as u32 as u64, || call().into()) as c_int
}

/// Returns true if a call that starts a thread or process is a fork: the child has memory of its own. Otherwise, memory
/// leaves the arena that the kernel will write for a thread, or that the thread or process could not be used with.
#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn is_fork(
    number: c_long,
    a: c_long,
    b: c_long,
    _: c_long,
    d: c_long,
    e: c_long,
) -> bool {
    /// `CLONE_ARGS_SIZE_VER0`
    const SMALLEST_BYTES: c_long = 64;
    let (flags, child_tid, tls) = match number {
        libc::SYS_clone => (a as u64, d as usize, e as usize),
        libc::SYS_clone3 => {
            // Flags, a pidfd, the child's and the parent's thread id, a signal, a stack, its length, storage.
            let given = Some(a as usize)
                .filter(|_| b >= SMALLEST_BYTES)
                .and_then(user_memory::read::<[u64; 8]>);
            // The kernel refuses arguments that cannot be read.
            let Some([flags, _, child_tid, _, _, _, _, tls]) = given else { return false };
            (flags, child_tid as usize, tls as usize)
        }
        _ => return true,
    };
    if flags & libc::CLONE_VM as u64 == 0 {
        return true;
    }
    unshare::before_clone(flags);
    futex::before_clone(flags, child_tid, tls);
    false
}

#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn forking_call(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
) -> c_long {
    // SAFETY: the program's own call.
    let call = || unsafe { passthrough::syscall(number, a, b, c, d, e, 0) };
    if config().off {
        return call();
    }
    let flags = match number {
        libc::SYS_clone => a as u64,
        // SAFETY: [`is_fork`] has read the flags there, at the beginning of the program's `struct clone_args`.
        libc::SYS_clone3 => unsafe { ptr::read_unaligned(a as *const u64) },
        _ => 0,
    };
    forked(&mut BlockedSignals::enter(), flags, call)
}

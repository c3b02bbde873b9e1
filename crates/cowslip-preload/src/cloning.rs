//! Forks by other means: `_Fork`, `clone` and `syscall(SYS_clone, …)` without `CLONE_VM`.
//!
//! No handlers run in them, so ours are called here.
//!
//! # Safety
//! See [`crate::mapping`]; `syscall` is left as it came for every number but those of a fork.

use core::ffi::{c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cowslip_sys::process::{self, Quiet};
use cowslip_sys::{Errno, passthrough};

use crate::forking::{find, in_child, in_parent, prepare, watch};
use crate::program::arenas;
use crate::refusals;

/// The child of the fork that is under way shares the table of descriptors with its parent. Written by the thread that holds
/// the arenas' locks, and read in the child.
static SHARES_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

/// In a child, once: whether it shares the table of descriptors with its parent, so that closing ours would be closing
/// the parent's.
pub(crate) fn take_shares_descriptors() -> bool {
    SHARES_DESCRIPTORS.swap(false, Ordering::Relaxed)
}

fn shares_descriptors(flags: u64) -> bool {
    flags & libc::CLONE_FILES as u64 != 0
}

/// `fork`s by `call`, which answers with 0 in the child if it returns there at all.
fn forked(quiet: &mut Quiet, shares_descriptors: bool, call: impl FnOnce() -> c_long) -> c_long {
    prepare();
    if let Some(errno) = refusals::take() {
        quiet.set_errno(errno);
        return -1;
    }
    SHARES_DESCRIPTORS.store(shares_descriptors, Ordering::Relaxed);
    let pid = call();
    if pid == 0 {
        in_child();
        return 0;
    }
    if pid < 0 {
        quiet.set_errno(process::current_errno());
    }
    SHARES_DESCRIPTORS.store(false, Ordering::Relaxed);
    in_parent();
    if pid > 0 {
        watch(pid as c_int);
    }
    pid
}

fn fail(errno: Errno) -> c_int {
    Quiet::enter().set_errno(errno);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> c_int {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let Some(real) = find(c"_Fork", &REAL) else { return fail(Errno::NOSYS) };
    // SAFETY: libc's symbol of that name has this type.
    let real = unsafe {
        core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(real.as_ptr())
    };
    // SAFETY: the program's own call.
    let call = || unsafe { real() };
    if arenas().next().is_none() {
        return call();
    }
    forked(&mut Quiet::enter(), false, || call().into()) as c_int
}

type Main = extern "C" fn(*mut c_void) -> c_int;

/// What a cloned child does; it reads its copy of the caller's stack.
struct Start {
    main: Main,
    argument: *mut c_void,
    /// The caller's, which blocks signals until it is dropped, on either side.
    quiet: *const Quiet,
}

extern "C" fn begin(start: *mut c_void) -> c_int {
    // SAFETY: `clone` below passes this; the child has a copy of the memory it is in, and never returns
    // to the frame that would drop its copy of the guard.
    let (Start { main, argument, .. }, quiet) = unsafe {
        let start = start.cast::<Start>().read();
        let quiet = start.quiet.read();
        (start, quiet)
    };
    in_child();
    drop(quiet);
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
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let Some(real) = find(c"clone", &REAL) else { return fail(Errno::NOSYS) };
    // SAFETY: libc's symbol of that name takes these, the last three if the flags ask for them.
    let real = unsafe { core::mem::transmute::<*mut c_void, Clone>(real.as_ptr()) };
    if flags & libc::CLONE_VM != 0 || arenas().next().is_none() {
        // SAFETY: the program's own call.
        return unsafe { real(main, stack, flags, argument, parent_tid, tls, child_tid) };
    }
    let mut quiet = Quiet::enter();
    let start = Start { main, argument, quiet: ptr::from_ref(&quiet) };
    let start = ptr::from_ref(&start).cast_mut().cast();
    // SAFETY: the program's own call, by way of `begin`.
    let call = || unsafe { real(begin, stack, flags, start, parent_tid, tls, child_tid) };
    forked(&mut quiet, shares_descriptors(flags as u64), || call().into()) as c_int
}

#[cfg(target_arch = "x86_64")]
extern "C" fn forking_call(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
) -> c_long {
    // SAFETY: the program's own call.
    let call = || unsafe { passthrough::syscall(number, a, b, c, d, e, 0) };
    if arenas().next().is_none() {
        return call();
    }
    let flags = match number {
        libc::SYS_clone => a as u64,
        // SAFETY: `syscall` below has read the flags there, at the beginning of the program's `struct clone_args`.
        libc::SYS_clone3 => unsafe { ptr::read_unaligned(a as *const u64) },
        _ => 0,
    };
    forked(&mut Quiet::enter(), shares_descriptors(flags), call)
}

/// `syscall(2)`. Numbers that are no fork, or one with `CLONE_VM`, whose child shares the caller's stack,
/// go on without a frame of ours.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp rdi, {fork}",
        "je {forking}",
        "cmp rdi, {clone}",
        "je 2f",
        "cmp rdi, {clone3}",
        "jne {other}",
        "test dword ptr [rsi], {vm}",
        "jz {forking}",
        "jmp {other}",
        "2:",
        "test esi, {vm}",
        "jz {forking}",
        "jmp {other}",
        fork = const libc::SYS_fork,
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        vm = const libc::CLONE_VM,
        forking = sym forking_call,
        other = sym passthrough::syscall,
    )
}

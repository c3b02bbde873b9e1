//! `close` and its family: the program does not see our descriptors.
//!
//! # Safety
//! Every function is libc's of that name; see [`crate::hooks`].

use core::ffi::{c_int, c_uint};

use cowslip_sys::passthrough;
use cowslip_sys::reserved_fd::{between_changes, is_free, is_held, next_held};

use crate::arena::setup_state::is_closed;
use crate::hooks::unshare;
use crate::rt::descriptor_kinds;
use crate::rt::fork_state::is_own_process;

const CLOSE_RANGE_UNSHARE: c_int = libc::CLOSE_RANGE_UNSHARE as c_int;

fn fail(errno: c_int) -> c_int {
    // SAFETY: errno is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() = errno };
    -1
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_held(fd) || is_known_free(fd) {
        return fail(libc::EBADF);
    }
    descriptor_kinds::forget(fd);
    // SAFETY: the program's own call.
    unsafe { passthrough::close(fd) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first > last {
        return fail(libc::EINVAL);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        // Done first: below there may be nothing left to close.
        // SAFETY: a part of the program's own call.
        if unsafe { unshare::unshare(libc::CLONE_FILES) } != 0 {
            return -1;
        }
    }
    // It is done: a second time, it would give this thread another table than the service thread has.
    let flags = flags & !CLOSE_RANGE_UNSHARE;
    let close = || close_all_but_held(first, last, flags);
    if may_change() { between_changes(close) } else { close() }
}

/// Returns true if a thread may open or close a descriptor of ours at this moment, in this table. None does so once the
/// program filters its calls, nor in the table of a process that shares memory (`vfork(2)`).
fn may_change() -> bool {
    !is_closed() && is_own_process()
}

/// Returns true if the program has no such descriptor. False, too, once it filters its calls.
fn is_known_free(fd: c_int) -> bool {
    !is_closed() && is_free(fd)
}

fn close_all_but_held(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut from = first;
    while let Some(held) = next_held(clamp(from), clamp(last)) {
        let held = held as c_uint;
        // SAFETY: a part of the program's own call.
        if held > from && unsafe { passthrough::close_range(from, held - 1, flags) } != 0 {
            return -1;
        }
        from = held + 1;
        if from > last {
            return 0;
        }
    }
    // SAFETY: the rest of the program's own call.
    unsafe { passthrough::close_range(from, last, flags) }
}

fn clamp(fd: c_uint) -> c_int {
    c_int::try_from(fd).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: closefrom(3) is this range.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if is_held(to) {
        return fail(libc::EBUSY);
    }
    descriptor_kinds::invalidate();
    // SAFETY: the program's own call.
    let call = || unsafe { passthrough::dup3(from, to, flags) };
    // It closes no other file, so it does not block.
    if is_known_free(to) && may_change() { between_changes(call) } else { call() }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if from != to {
        // SAFETY: dup2(2) differs from dup3(2) only for equal numbers.
        return unsafe { dup3(from, to, 0) };
    }
    // SAFETY: asks whether the descriptor is open, as dup2(2) does for equal numbers.
    match unsafe { libc::fcntl(from, libc::F_GETFD) } {
        -1 => -1,
        _ => to,
    }
}

//! A place where `cowslip branch` may copy the program: the functions of the preload library of `cowslip run`, for
//! programs that are linked with this one. A preloaded library comes first, and then these are not called, or pass the
//! call on.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;

use cowslip_sys::{Errno, dynamic};

/// Lets `cowslip branch` copy this process, which runs under `cowslip run`, for `timeout_ms`: 0 returns at once if no
/// command waits for it, -1 waits until `cowslip branch --release`. `name` may be NULL: the process is then found by
/// its id alone.
///
/// In each copy it returns the copy's number, 0 or more. In the program itself it returns -1, with errno.
///
/// errno is EAGAIN when the time is up, ECANCELED after `--release`, EINTR when a signal handler ran, EBUSY while
/// another thread is in this call, EINVAL if the name has other characters than letters, digits, '.', '_' and '-', is of
/// digits alone or longer than 32, EPERM if the program filters its system calls, ENOSYS without `cowslip run`.
///
/// A copy is like the child of fork(2): only the calling thread lives on in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_branch_point(name: *const c_char, timeout_ms: c_int) -> c_int {
    type BranchPoint = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    match preloaded(cowslip_branch_point as BranchPoint as *const c_void, c"cowslip_branch_point") {
        // SAFETY: the preload library's function of that name has this type; the rest is C's contract.
        Some(found) => unsafe { transmute::<*const c_void, BranchPoint>(found)(name, timeout_ms) },
        None => -1,
    }
}

/// A descriptor that can be read (poll(2)) while a command waits for this process to reach its branch point, for
/// programs that wait for other things too: they then call cowslip_branch_point(name, 0). They must not close the
/// descriptor. -1 with errno if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_branch_fd(name: *const c_char) -> c_int {
    type BranchFd = unsafe extern "C" fn(*const c_char) -> c_int;
    match preloaded(cowslip_branch_fd as BranchFd as *const c_void, c"cowslip_branch_fd") {
        // SAFETY: as above.
        Some(found) => unsafe { transmute::<*const c_void, BranchFd>(found)(name) },
        None => -1,
    }
}

/// The preload library's function; without it, `None` and ENOSYS.
fn preloaded(own: *const c_void, name: &CStr) -> Option<*const c_void> {
    let found = dynamic::other_than(own, name);
    if found.is_none() {
        dynamic::set_errno(Errno::NOSYS);
    }
    found
}

//! `mlock` and its family: locked memory leaves the arena.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_uint, c_void};

use cowslip::units::VirtRange;
use cowslip_sys::passthrough;

use crate::hooks::madvise::{Answer, page_aligned, request};
use crate::rt::config::config;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    let (addr, len) = page_aligned(addr, len);
    // SAFETY: the program's own call, or a part of it.
    let kernel = |r: VirtRange| unsafe { passthrough::mlock(r.start as *mut c_void, r.len) };
    request(addr, len, &Answer::Leave, kernel)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_uint) -> c_int {
    let (addr, len) = page_aligned(addr, len);
    // SAFETY: the program's own call, or a part of it.
    let kernel =
        |r: VirtRange| unsafe { passthrough::mlock2(r.start as *mut c_void, r.len, flags) };
    request(addr, len, &Answer::Leave, kernel)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    let (addr, len) = page_aligned(addr, len);
    // SAFETY: the program's own call, or a part of it.
    let kernel = |r: VirtRange| unsafe { passthrough::munlock(r.start as *mut c_void, r.len) };
    request(addr, len, &Answer::Undo, kernel)
}

/// Locks pages as they are touched. A private mapping that is locked as a whole is copied as a whole when it is made,
/// so a freeze would copy everything; locked at their first touch, pages stay in memory just as well.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let is_ours = !config().off && flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) != 0;
    // SAFETY: the program's own call.
    unsafe { passthrough::mlockall(if is_ours { flags | libc::MCL_ONFAULT } else { flags }) }
}

#![allow(unsafe_code)]
//! Looks up functions of other libraries in this process (`dlsym(3)`), and serves functions that
//! such libraries call.
//!
//! # Safety
//! A lookup by name changes nothing; a caller of the found function must know its type.

use core::ffi::{CStr, c_void};

use crate::Errno;

/// The function of that name in another library; never `own`, the caller's function of that name if it has one.
pub fn other_than(own: *const c_void, name: &CStr) -> Option<*const c_void> {
    [libc::RTLD_DEFAULT, libc::RTLD_NEXT].into_iter().find_map(|scope| {
        // SAFETY: see the module.
        let found = unsafe { libc::dlsym(scope, name.as_ptr()) }.cast_const();
        (!found.is_null() && found != own).then_some(found)
    })
}

/// Stores this value in `errno`, for a function that reports errors like libc's.
pub fn set_errno(errno: Errno) {
    // SAFETY: errno is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

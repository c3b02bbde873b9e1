#![allow(unsafe_code)]
//! Functions of other libraries in this process (`dlsym(3)`), and to be one that they call.
//!
//! # Safety
//! A lookup by name changes nothing; to call what is found is for who knows its type.

use core::ffi::{CStr, c_void};

use crate::Errno;

/// The function of that name which another library has, not `own`, the caller's of that name if it has one.
pub fn other_than(own: *const c_void, name: &CStr) -> Option<*const c_void> {
    [libc::RTLD_DEFAULT, libc::RTLD_NEXT].into_iter().find_map(|scope| {
        // SAFETY: see the module.
        let found = unsafe { libc::dlsym(scope, name.as_ptr()) }.cast_const();
        (!found.is_null() && found != own).then_some(found)
    })
}

/// Leaves this value in `errno`, for a function that answers as libc's do.
pub fn set_errno(errno: Errno) {
    // SAFETY: errno is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

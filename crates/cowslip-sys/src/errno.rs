#![allow(unsafe_code)]
//! The errno of the calling thread.
//!
//! # Safety
//! It is a thread-local integer that is always there.

use crate::Errno;

/// The errno of this thread.
pub fn current() -> Errno {
    last()
}

/// The errno that libc's `syscall(2)` left in this thread.
pub(crate) fn last() -> Errno {
    // SAFETY: see the module.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

//! The forks of a branch point.
//!
//! # Safety
//! See [`super::point`].

use core::ffi::c_int;

use cowslip_sys::Errno;

use crate::hooks::fork as hook;

/// Forks as the program does, with a freeze before it if there is something to freeze.
pub(super) fn fork() -> Result<i32, Errno> {
    // SAFETY: the child keeps to what [`super::point`] says.
    answer_of(unsafe { hook::fork() })
}

/// Forks in a child that does nothing else.
pub(super) fn fork_again() -> Result<i32, Errno> {
    // SAFETY: as above.
    answer_of(unsafe { hook::fork_without_setup() })
}

fn answer_of(pid: c_int) -> Result<i32, Errno> {
    if pid < 0 { Err(cowslip_sys::errno::current()) } else { Ok(pid) }
}

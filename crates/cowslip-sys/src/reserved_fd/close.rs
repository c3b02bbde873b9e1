#![allow(unsafe_code)]
//! Closes descriptors by a system call, not through libc's `close`.

use crate::RawFd;

pub(super) fn close_now(fd: RawFd) {
    // SAFETY: the number comes from a descriptor that this module owned, and is not used
    // afterwards.
    unsafe { rustix::io::close(fd) }
}

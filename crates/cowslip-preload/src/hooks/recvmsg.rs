//! `recvmsg` and `recvmmsg`: descriptors that arrive in messages.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_uint, c_void};

use crate::hooks::open::before_open;
use crate::rt::next_symbol::next_symbol;

next_symbol! { RECVMSG = c"recvmsg" }
next_symbol! { RECVMMSG = c"recvmmsg" }

/// # Safety
/// The kernel has just filled it in.
unsafe fn check(message: *const libc::msghdr) {
    // SAFETY: as the caller promised; cmsg(3).
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(message);
        while !part.is_null() {
            if (*part).cmsg_level == libc::SOL_SOCKET && (*part).cmsg_type == libc::SCM_RIGHTS {
                // They are checked when they are read.
                before_open(libc::O_DIRECT);
                return;
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    type Original = unsafe extern "C-unwind" fn(c_int, *mut libc::msghdr, c_int) -> isize;
    // SAFETY: libc's function of that name has this type, and the call is the program's own. A message that was
    // received is filled in.
    unsafe {
        let original = core::mem::transmute::<*mut c_void, Original>(RECVMSG.get());
        let answer = original(fd, message, flags);
        if answer >= 0 {
            check(message);
        }
        answer
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    type Original = unsafe extern "C-unwind" fn(
        c_int,
        *mut libc::mmsghdr,
        c_uint,
        c_int,
        *mut libc::timespec,
    ) -> c_int;
    // SAFETY: as above, for the returned number of messages.
    unsafe {
        let original = core::mem::transmute::<*mut c_void, Original>(RECVMMSG.get());
        let answer = original(fd, messages, count, flags, timeout);
        if answer > 0 {
            (0..answer as usize).for_each(|i| check(&raw const (*messages.add(i)).msg_hdr));
        }
        answer
    }
}

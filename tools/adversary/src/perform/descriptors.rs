//! Descriptors: passed on, and closed by code that does not know them.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::threads::ALIVE;
use super::{Me, SKIP};
use crate::program::Call;
use crate::sys;

impl Me {
    /// Closes unknown descriptors, or limits their number: only in a process with one thread, because others
    /// may have some open.
    pub(super) fn descriptors(&mut self, call: &Call) -> Option<()> {
        if ALIVE.load(Ordering::Relaxed) != 1 || !self.threads.is_empty() {
            return SKIP;
        }
        let limit = |files: u64| {
            let limit = libc::rlimit { rlim_cur: files, rlim_max: 1024 };
            // SAFETY: the pointer is to a limit.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        };
        match call.word(0) {
            // SAFETY: nothing of this process holds a descriptor between calls.
            "close_range" => unsafe { _ = libc::close_range(3, u32::MAX, 0) },
            // SAFETY: see `close_range`.
            "closefrom" => unsafe { closefrom(3) },
            "close" => (3..1024).for_each(|fd| _ = sys::close(fd)),
            "few" => limit(16),
            _ => {
                limit(0);
                self.may_open = false;
            }
        }
        Some(())
    }

    /// Gives this thread its own table of descriptors.
    pub(super) fn tables(&mut self, call: &Call) -> Option<()> {
        let made = match call.word(0) {
            "close_range" => sys::close_range(3, libc::CLOSE_RANGE_UNSHARE as c_int),
            _ => sys::unshare(libc::CLONE_FILES),
        };
        self.expect("a table of descriptors", made, Ok(0));
        Some(())
    }
}

unsafe extern "C" {
    fn closefrom(first: c_int);
}

/// Sends a descriptor with `SCM_RIGHTS`, or receives one.
pub(super) fn message(socket: c_int, fd: Option<c_int>) -> Option<c_int> {
    let mut byte = [0_u8];
    let mut vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0_u64; 8];
    // SAFETY: all zeroes are a valid header; its pointers then refer to values that outlive it; `control` has
    // room for a header and one descriptor.
    unsafe {
        let mut header: libc::msghdr = core::mem::zeroed();
        header.msg_iov = &mut vector;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize;
        if let Some(fd) = fd {
            let rights = &mut *libc::CMSG_FIRSTHDR(&header);
            rights.cmsg_level = libc::SOL_SOCKET;
            rights.cmsg_type = libc::SCM_RIGHTS;
            rights.cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
            libc::CMSG_DATA(rights).cast::<c_int>().write_unaligned(fd);
            return (libc::sendmsg(socket, &header, 0) == 1).then_some(fd);
        }
        let came = libc::recvmsg(socket, &mut header, libc::MSG_CMSG_CLOEXEC);
        let rights = libc::CMSG_FIRSTHDR(&header).as_ref().filter(|_| came == 1)?;
        Some(libc::CMSG_DATA(rights).cast::<c_int>().read_unaligned())
    }
}

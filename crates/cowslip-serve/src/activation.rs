#![allow(unsafe_code)]
//! A socket that systemd made (`sd_listen_fds(3)`).
//!
//! # Safety
//! The descriptor is taken once, only if the variables say that it was passed to this very process, and only if it is
//! such a socket.

use std::env;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip_sys::socket;

/// The number of the first passed descriptor.
const FIRST: i32 = 3;

/// The listening socket that this process was started with, if any. Only the first call returns it, and it must come
/// before this process opens anything.
///
/// # Errors
/// `InvalidInput` if something else was passed: several sockets, or a descriptor that is no listening Unix stream.
pub fn inherited_listener() -> io::Result<Option<UnixListener>> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) || IS_TAKEN.swap(true, Relaxed) {
        return Ok(None);
    }
    // SAFETY: the descriptor is only asked for its kind.
    let is_ours = || socket::listens(unsafe { BorrowedFd::borrow_raw(FIRST) });
    if number("LISTEN_FDS") != Some(1) || !is_ours() {
        let what = "not one Unix socket that listens for streams was passed (LISTEN_FDS)";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    // SAFETY: see the module.
    let listener = UnixListener::from(unsafe { OwnedFd::from_raw_fd(FIRST) });
    socket::close_at_exec(listener.as_fd())?;
    Ok(Some(listener))
}

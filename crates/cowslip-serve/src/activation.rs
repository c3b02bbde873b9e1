#![allow(unsafe_code)]
//! A socket that systemd made (`sd_listen_fds(3)`).
//!
//! # Safety
//! The descriptor is taken once, and only if the variables say that it was passed to this very process.

use std::env;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The first descriptor that is passed.
const FIRST: i32 = 3;

/// The listening socket that this process was started with, if it was. The first call has it.
pub fn inherited_listener() -> Option<UnixListener> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| env::var(name).ok()?.parse::<u32>().ok();
    let is_ours =
        number("LISTEN_PID") == Some(std::process::id()) && number("LISTEN_FDS") == Some(1);
    if !is_ours || IS_TAKEN.swap(true, Relaxed) {
        return None;
    }
    // SAFETY: see the module.
    Some(UnixListener::from(unsafe { OwnedFd::from_raw_fd(FIRST) }))
}

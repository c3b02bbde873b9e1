#![allow(unsafe_code)]
//! A descriptor that stays open from its first use to the end of the process.

use core::sync::atomic::{AtomicU64, Ordering};

use super::close::close_now;
use super::{FileIdentity, ReservedFd, fork_gate, table};
use crate::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A directory or mount of ours that stays open until it is [closed](Self::close). Access never waits, not even in a
/// child that was forked while another thread opened it.
#[derive(Debug)]
pub(crate) struct Kept(AtomicU64);

impl Kept {
    pub(crate) const fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    fn pack(fd: RawFd, device: u64) -> u64 {
        device << 32 | fd as u64
    }

    /// `None` if it is not open yet, or the program has closed it or put another file in its place.
    pub(crate) fn get(&self) -> Option<BorrowedFd<'static>> {
        let kept = self.0.load(Ordering::Acquire);
        if kept == 0 {
            return None;
        }
        // SAFETY: `set` gave up ownership of the descriptor with this number, and `close`, the only function here that
        // closes it, is not called while another thread may be here. If the program closed it, the identity below shows
        // that.
        let fd = unsafe { BorrowedFd::borrow_raw(kept as u32 as RawFd) };
        let identity = FileIdentity::from_fd(fd).ok()?;
        (Self::pack(fd.as_raw_fd(), identity.device) == kept).then_some(fd)
    }

    /// Closes it. No other thread may access or use it meanwhile.
    pub(crate) fn close(&self) {
        fork_gate::changing(|| {
            if let Some(fd) = self.get()
                && table::remove(fd.as_raw_fd())
            {
                close_now(fd.as_raw_fd());
            }
        });
        self.0.store(0, Ordering::Release);
    }

    /// Keeps `fd`, the only file on its device, unless another thread was faster.
    pub(crate) fn set(&self, fd: OwnedFd) {
        let before = self.0.load(Ordering::Acquire);
        let held = ReservedFd::hold(fd);
        if self.get().is_none()
            && let Ok(identity) = FileIdentity::from_fd(held.as_fd())
        {
            let now = Self::pack(held.as_raw_fd(), identity.device);
            let kept = self.0.compare_exchange(before, now, Ordering::Release, Ordering::Relaxed);
            if kept.is_ok() {
                core::mem::forget(held);
            }
        }
    }
}

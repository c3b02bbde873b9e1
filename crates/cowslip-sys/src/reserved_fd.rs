#![allow(unsafe_code)]
//! Descriptors that the host program does not know of, must not close, and must not be disturbed
//! by.
//!
//! A [`ReservedFd`] has a high number and an entry in a table that the preload library checks before it lets the
//! program close a descriptor. It is closed by a system call, not through libc's `close`, which that library replaces.
//!
//! # Safety
//! The only `unsafe` here borrows a descriptor number that this module owns until it closes it.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::os::fd::IntoRawFd;

use crate::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd, Result};

const SLOTS: usize = 256;
const FREE: i32 = -1;
/// No process has a descriptor with this number: `EBADF`.
const NEVER_OPEN: RawFd = i32::MAX;
/// The numbers 0, 1 and 2 have a meaning to every program.
const FIRST: RawFd = 3;

static TABLE: [AtomicI32; SLOTS] = [const { AtomicI32::new(FREE) }; SLOTS];

/// Returns true if `fd` is one of ours.
pub fn is_held(fd: RawFd) -> bool {
    fd >= 0 && TABLE.iter().any(|slot| slot.load(Ordering::Relaxed) == fd)
}

/// The smallest of our descriptors in `first ..= last`.
pub fn next_held(first: RawFd, last: RawFd) -> Option<RawFd> {
    TABLE
        .iter()
        .map(|slot| slot.load(Ordering::Relaxed))
        .filter(|&fd| fd != FREE && first <= fd && fd <= last)
        .min()
}

/// A descriptor of ours.
#[derive(Debug)]
pub struct ReservedFd {
    fd: AtomicI32,
    slot: Option<usize>,
    /// `None` if fstat failed. A file that the program has put in its place is not ours to close.
    identity: Option<FileIdentity>,
    /// The file was [given up](Self::give_up_for), so the number refers to another.
    is_given_up: AtomicBool,
}

impl ReservedFd {
    /// Takes `fd` over and moves it to a high number if there is room (`F_DUPFD_CLOEXEC`). For a moment it keeps its
    /// first number, which a descriptor that another thread opens then cannot get.
    ///
    /// It never keeps 0, 1 or 2: where no other number is free it is closed, and every use fails with `EBADF`.
    pub fn hold(fd: OwnedFd) -> Self {
        let low = fd.into_raw_fd();
        let move_above = |floor| {
            // SAFETY: `low` was just taken out of an owned descriptor and is still open.
            rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(low) }, floor)
        };
        let (fd, slot) = match move_above(floor()).or_else(|_| move_above(FIRST)) {
            Ok(high) => {
                close_now(low);
                (high.into_raw_fd(), true)
            }
            Err(_) if low >= FIRST => (low, true),
            Err(_) => {
                close_now(low);
                (FREE, false)
            }
        };
        let take = |place: &AtomicI32| {
            place.compare_exchange(FREE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let slot = if slot { TABLE.iter().position(take) } else { None };
        let (fd, is_given_up) = (AtomicI32::new(fd), AtomicBool::new(false));
        let mut held = Self { fd, slot, identity: None, is_given_up };
        held.identity = FileIdentity::of(held.as_fd()).ok();
        held
    }

    /// Returns true if the number refers to another file by now.
    fn is_replaced(&self) -> bool {
        let now = FileIdentity::of(self.as_fd()).ok();
        let is_known = now.is_some() && self.identity.is_some();
        is_known && now != self.identity && !self.is_given_up.load(Ordering::Relaxed)
    }

    /// Gives up the file, while the number stays taken by the file of `other`: for descriptors that other threads may
    /// be using at this moment. A call of theirs fails, and never reaches a file that the program opened since.
    pub fn give_up_for(&self, other: &Self) {
        let fd = self.fd.load(Ordering::Relaxed);
        if fd == FREE || self.is_replaced() {
            return;
        }
        // SAFETY: the number belongs to this value, and the handle made of it here does not close it.
        let mut number = core::mem::ManuallyDrop::new(unsafe {
            <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd)
        });
        // The limit of open files applies to this too, but not to closing.
        match rustix::io::dup3(other, &mut number, rustix::io::DupFlags::CLOEXEC) {
            Ok(()) => self.is_given_up.store(true, Ordering::Relaxed),
            Err(_) => self.close_early(),
        }
    }

    /// Forgets the descriptor without closing it: in a child that shares its parent's table of descriptors, it belongs
    /// to the parent.
    pub fn leave_open(&self) {
        self.fd.store(FREE, Ordering::Relaxed);
    }

    /// Closes the descriptor now, while other references to this value exist that will not be used:
    /// in a forked child, where the threads that held them do not exist.
    pub fn close_early(&self) {
        let is_replaced = self.is_replaced();
        let fd = self.fd.swap(FREE, Ordering::Relaxed);
        if fd == FREE {
            return;
        }
        if let Some(slot) = self.slot {
            TABLE[slot].store(FREE, Ordering::Relaxed);
        }
        if !is_replaced {
            close_now(fd);
        }
    }
}

impl AsFd for ReservedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is never -1. The descriptor is ours and stays open as long as `self` is used, which the
        // borrow is tied to, except after `close_early`, when the number is one that is never open. A program can still
        // close it by a system call of its own, and open another file there: code that reads or writes memory through
        // it checks `same_file` first, and the other calls fail on any other kind of file.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for ReservedFd {
    fn as_raw_fd(&self) -> RawFd {
        match self.fd.load(Ordering::Relaxed) {
            FREE => NEVER_OPEN,
            fd => fd,
        }
    }
}

impl Drop for ReservedFd {
    fn drop(&mut self) {
        self.close_early();
    }
}

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
        let identity = FileIdentity::of(fd).ok()?;
        (Self::pack(fd.as_raw_fd(), identity.device) == kept).then_some(fd)
    }

    /// Closes it. No other thread may access or use it meanwhile.
    pub(crate) fn close(&self) {
        if let Some(fd) = self.get()
            && let Some(slot) =
                TABLE.iter().find(|slot| slot.load(Ordering::Relaxed) == fd.as_raw_fd())
        {
            slot.store(FREE, Ordering::Relaxed);
            close_now(fd.as_raw_fd());
        }
        self.0.store(0, Ordering::Release);
    }

    /// Keeps `fd`, the only file on its device, unless another thread was faster.
    pub(crate) fn set(&self, fd: OwnedFd) {
        let before = self.0.load(Ordering::Acquire);
        let held = ReservedFd::hold(fd);
        if self.get().is_none()
            && let Ok(identity) = FileIdentity::of(held.as_fd())
        {
            let now = Self::pack(held.as_raw_fd(), identity.device);
            let kept = self.0.compare_exchange(before, now, Ordering::Release, Ordering::Relaxed);
            if kept.is_ok() {
                core::mem::forget(held);
            }
        }
    }
}

fn close_now(fd: RawFd) {
    // SAFETY: the number comes from a descriptor that this module owned, and is not used
    // afterwards.
    unsafe { rustix::io::close(fd) }
}

/// A floor above the numbers that programs and `select(2)` commonly use, and below the usual limit of 1024; under a low
/// limit, above the lower half.
fn floor() -> RawFd {
    const HIGHEST: u64 = 900;
    const ROOM: u64 = 60;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let floor = limit.map_or(HIGHEST, |limit| limit.saturating_sub(ROOM).max(limit / 2));
    (floor.min(HIGHEST) as RawFd).max(FIRST)
}

/// Returns true if `fd` refers to the same file as when it was opened, as far as `fstat(2)` can
/// tell.
pub fn same_file(fd: BorrowedFd<'_>, identity: FileIdentity) -> bool {
    FileIdentity::of(fd) == Ok(identity)
}

/// Device and inode of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Asks `fstat(2)`.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns it as two numbers, for a message to another process.
    pub fn to_numbers(self) -> [u64; 2] {
        [self.device, self.inode]
    }
}

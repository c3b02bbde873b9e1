#![allow(unsafe_code)]
//! Descriptors that the host program does not know of, must not close, and must not be disturbed by.
//!
//! A [`ReservedFd`] has a high number and an entry in a table that the preload library checks before it lets the
//! program close a descriptor. It is closed by a system call, not through libc's `close`, which that library replaces.
//!
//! # Safety
//! The only `unsafe` here borrows a descriptor number that this module owns until it closes it.

mod close;
mod fork_gate;
mod identity;
mod kept;
mod table;

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::os::fd::IntoRawFd;

use crate::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use close::close_now;
pub use fork_gate::{ForkGate, between_changes, is_free};
pub use identity::{FileIdentity, same_file};
pub(crate) use kept::Kept;
use table::{Place, Scope};
pub use table::{Table, is_held, next_held, table};

const CLOSED: i32 = -1;
/// No process has a descriptor with this number: `EBADF`.
const NEVER_OPEN: RawFd = i32::MAX;
/// The numbers 0, 1 and 2 have a meaning to every program.
const FIRST: RawFd = 3;

/// A descriptor of ours.
#[derive(Debug)]
pub struct ReservedFd {
    fd: AtomicI32,
    /// `None` if the table was full, or the descriptor could not be kept.
    place: Option<Place>,
    /// `None` if fstat failed. A file that the program has put in its place is not ours to close.
    identity: Option<FileIdentity>,
    /// The file was [given up](Self::give_up_for), so the number refers to another.
    is_given_up: AtomicBool,
}

impl ReservedFd {
    /// Opens a descriptor for this process alone: a child that begins by [`ForkGate::begin_child`] closes it, even if the
    /// fork came from another thread before this call returned, unless it [claims](Self::claim) it.
    ///
    /// `open` makes system calls, and waits for no other thread.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        fork_gate::changing(|| open().map(|fd| Self::take(fd, Scope::Private)))
    }

    /// Takes over `fd`, which children inherit.
    pub fn hold(fd: OwnedFd) -> Self {
        fork_gate::changing(|| Self::take(fd, Scope::Inherited))
    }

    /// Takes `fd` over and moves it to a high number if there is room (`F_DUPFD_CLOEXEC`). For a moment it keeps its
    /// first number, which a descriptor that another thread opens then cannot get.
    ///
    /// It never keeps 0, 1 or 2: where no other number is free it is closed, and every use fails with `EBADF`.
    fn take(fd: OwnedFd, scope: Scope) -> Self {
        let low = fd.into_raw_fd();
        let move_above = |floor| {
            // SAFETY: `low` was just taken out of an owned descriptor and is still open.
            rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(low) }, floor)
        };
        let fd = match move_above(floor()).or_else(|_| move_above(FIRST)) {
            Ok(high) => {
                close_now(low);
                high.into_raw_fd()
            }
            Err(_) if low >= FIRST => low,
            Err(_) => {
                close_now(low);
                CLOSED
            }
        };
        let (mut identity, mut place) = (None, None);
        if fd != CLOSED {
            // SAFETY: it is open, and this value's.
            identity = FileIdentity::from_fd(unsafe { BorrowedFd::borrow_raw(fd) }).ok();
            place = table::enter(fd, identity, scope);
        }
        Self { fd: AtomicI32::new(fd), place, identity, is_given_up: AtomicBool::new(false) }
    }

    /// In a forked child, before [`ForkGate::begin_child`]: keeps a descriptor that was opened for the parent alone.
    pub fn claim(&self) {
        if let Some(place) = self.place {
            place.claim();
        }
    }

    /// The number, unless it was closed.
    fn number(&self) -> Option<RawFd> {
        let fd = self.fd.load(Ordering::Relaxed);
        (fd != CLOSED && self.place.is_none_or(Place::is_there)).then_some(fd)
    }

    /// Returns true if the number refers to another file by now.
    fn is_replaced(&self) -> bool {
        let now = FileIdentity::from_fd(self.as_fd()).ok();
        let is_known = now.is_some() && self.identity.is_some();
        is_known && now != self.identity && !self.is_given_up.load(Ordering::Relaxed)
    }

    /// Gives up the file, while the number stays taken by the file of `other`: for descriptors that other threads may
    /// be using at this moment. A call of theirs fails, and never reaches a file that the program opened since.
    pub fn give_up_for(&self, other: &Self) {
        let Some(fd) = self.number().filter(|_| self.is_ours() && !self.is_replaced()) else {
            return;
        };
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
        self.fd.store(CLOSED, Ordering::Relaxed);
    }

    /// False in a child that has closed it, or to whose parent it belongs.
    fn is_ours(&self) -> bool {
        self.place.is_none_or(Place::is_ours)
    }

    /// Closes the descriptor now, while other references to this value exist that will not be used:
    /// in a forked child, where the threads that held them do not exist.
    pub fn close_early(&self) {
        let is_replaced = self.is_replaced();
        let fd = self.fd.swap(CLOSED, Ordering::Relaxed);
        if fd == CLOSED || !self.is_ours() {
            return;
        }
        fork_gate::changing(|| {
            if let Some(place) = self.place {
                place.remove();
            }
            if !is_replaced {
                close_now(fd);
            }
        });
    }
}

impl AsFd for ReservedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is never -1. The descriptor is ours and stays open as long as `self` is used, which the
        // borrow is tied to, except after `close_early` and in a child that has closed it, when the number is one that is
        // never open. A program can still
        // close it by a system call of its own, and open another file there: code that reads or writes memory through
        // it checks `same_file` first, and the other calls fail on any other kind of file.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for ReservedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.number().unwrap_or(NEVER_OPEN)
    }
}

impl Drop for ReservedFd {
    fn drop(&mut self) {
        self.close_early();
    }
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

#![allow(unsafe_code)]
//! Another process: inspected and advised through handles that a reused process id cannot redirect.
//!
//! A pidfd and a descriptor of `/proc/PID` both refer to one process, not to a number. Once the process has ended,
//! opening a file through the directory fails with `ESRCH`, even if another process has its number.
//!
//! # Safety
//! The available advice changes no content: `MADV_COLLAPSE` copies pages under the kernel's own locks, `MADV_COLD`
//! moves them on its lists. Giving it for memory of another process is therefore safe.

use core::mem::MaybeUninit;

use rustix::fs::{Mode, OFlags};
use rustix::process::PidfdGetfdFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failpoints::{self, Op};
use crate::units::VirtRange;
use crate::{AsFd, AsRawFd, BorrowedFd, Errno, OwnedFd, Result, process};

/// Longest text of a file in `/proc` that is read: a process may have mappings of long names in any number.
pub const MOST_TEXT_BYTES: usize = 64 << 20;

/// Advice that leaves content as it is; the number is the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Advice {
    /// `MADV_COLD`: for a part of a huge page it splits the page.
    Cold = 20,
    /// `MADV_COLLAPSE` (Linux 6.1): makes it one huge page now.
    Collapse = 25,
}

/// The meaning of an error of [`Target::advise`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A page or a lock is in use (`EAGAIN`, `EINTR`), or a control group is full (`EBUSY`): try later.
    Retry,
    /// No huge page is free (`ENOMEM`): slow down.
    SlowDown,
    /// The advice does not apply to this memory (`EINVAL` and the rest): never try again.
    GiveUp,
    /// The process has ended (`ESRCH`).
    Vanished,
    /// A privilege is missing (`EPERM`, `EACCES`).
    Denied,
}

impl Refusal {
    /// The meaning of this error number of `process_madvise(2)`.
    ///
    /// ```
    /// use cowslip_sys::{Errno, target::Refusal};
    /// assert_eq!(Refusal::from_errno(Errno::AGAIN), Refusal::Retry);
    /// ```
    pub fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN | Errno::BUSY | Errno::INTR => Self::Retry,
            Errno::NOMEM => Self::SlowDown,
            Errno::SRCH => Self::Vanished,
            Errno::PERM | Errno::ACCESS => Self::Denied,
            _ => Self::GiveUp,
        }
    }
}

/// One process, until it ends.
#[derive(Debug)]
pub struct Target {
    pid: i32,
    pidfd: OwnedFd,
    directory: OwnedFd,
}

impl AsFd for Target {
    /// Readable once it has ended (`pidfd_open(2)`).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Target {
    /// The process that has the number `pid` now; `ESRCH` if there is none.
    pub fn open(pid: i32) -> Result<Self> {
        let pidfd = process::pidfd(pid)?;
        let number = rustix::path::DecInt::new(pid);
        let mut path = [0u8; 32];
        let whole = b"/proc/".len() + number.as_bytes().len();
        path[..6].copy_from_slice(b"/proc/");
        path[6..whole].copy_from_slice(number.as_bytes());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match rustix::fs::open(&path[..whole], flags, Mode::empty()) {
            Err(Errno::NOENT) => return Err(Errno::SRCH),
            opened => opened?,
        };
        let target = Self { pid, pidfd, directory };
        // The pidfd keeps the number from being reused while the process lives: then both refer to it.
        if target.has_ended()? { Err(Errno::SRCH) } else { Ok(target) }
    }

    /// The number that it has, or had.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns true if it has ended.
    pub fn has_ended(&self) -> Result<bool> {
        let mut ready = [false];
        process::wait_readable(
            &[self.pidfd.as_fd()],
            &mut ready,
            Some(core::time::Duration::ZERO),
        )?;
        Ok(ready[0])
    }

    /// Ends it (`SIGKILL`), and no other that has its number by now; `ESRCH` if it is gone.
    pub fn end(&self) -> Result<()> {
        rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL)
    }

    /// Sends it a signal that has a name; `ESRCH` if it is gone.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let signal = rustix::process::Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
        rustix::process::pidfd_send_signal(&self.pidfd, signal)
    }

    /// One of its open files, shared with it (`pidfd_getfd(2)`).
    pub fn descriptor(&self, number: i32) -> Result<OwnedFd> {
        rustix::process::pidfd_getfd(&self.pidfd, number, PidfdGetfdFlags::empty())
    }

    /// Moves the calling thread, and no other, into the network namespace of the process (`setns(2)`).
    pub fn enter_network(&self) -> Result<()> {
        let network = self.open_file("ns/net")?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
    }

    /// Returns true if two of its descriptors refer to one open file (`kcmp(2)`).
    pub fn is_same_file(&self, one: i32, other: i32) -> Result<bool> {
        const FILE: libc::c_int = 0;
        // SAFETY: the call takes numbers, and changes nothing.
        let answer = unsafe {
            crate::passthrough::by_number()(
                libc::SYS_kcmp,
                self.pid,
                self.pid,
                FILE,
                libc::c_ulong::from(one.cast_unsigned()),
                libc::c_ulong::from(other.cast_unsigned()),
            )
        };
        if answer < 0 { Err(crate::errno::last()) } else { Ok(answer == 0) }
    }

    /// Opens one of its files in `/proc` for reading; `ESRCH` once it has ended.
    pub fn open_file(&self, name: &str) -> Result<OwnedFd> {
        self.open_as(name, OFlags::RDONLY)
    }

    /// Opens one of its files in `/proc` for reading and writing.
    pub fn open_writable(&self, name: &str) -> Result<OwnedFd> {
        self.open_as(name, OFlags::RDWR)
    }

    /// Opens its memory for reading and writing (`proc_pid_mem(5)`). A process that is traced can be written through it.
    pub fn open_memory(&self) -> Result<OwnedFd> {
        self.open_as("mem", OFlags::RDWR)
    }

    fn open_as(&self, name: &str, access: OFlags) -> Result<OwnedFd> {
        let flags = access | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.directory, name, flags, Mode::empty()) {
            Err(Errno::NOENT) if self.has_ended()? => Err(Errno::SRCH),
            opened => opened,
        }
    }

    /// The text of one of its files in `/proc`; what is not UTF-8 is replaced. `EFBIG` if it is longer than [`MOST_TEXT_BYTES`].
    pub fn read_file(&self, name: &str) -> Result<String> {
        let file = self.open_file(name)?;
        let mut bytes = Vec::new();
        let mut buffer = [0u8; 1 << 14];
        loop {
            match rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer[..]))? {
                0 => break,
                read if bytes.len() + read > MOST_TEXT_BYTES => return Err(Errno::FBIG),
                read => bytes.extend_from_slice(&buffer[..read]),
            }
        }
        let text = String::from_utf8(bytes);
        Ok(text.unwrap_or_else(|text| String::from_utf8_lossy(text.as_bytes()).into_owned()))
    }

    /// Clears the record of which of its pages were accessed (`/proc/PID/clear_refs`), so that `smaps` shows accesses
    /// from now on.
    pub fn clear_referenced(&self) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, "clear_refs", flags, Mode::empty())?;
        rustix::io::write(&file, b"1").map(|_| ())
    }

    /// Gives advice about `range` of its memory (`process_madvise(2)`); [`Refusal::from_errno`] interprets
    /// an error.
    pub fn advise(&self, range: VirtRange, advice: Advice) -> Result<()> {
        failpoints::check(Op::ProcessMadvise)?;
        let vector = libc::iovec { iov_base: range.start as *mut _, iov_len: range.len };
        // SAFETY: the call reads one vector; the advice changes no content (see the module).
        let advised = unsafe {
            crate::passthrough::by_number()(
                libc::SYS_process_madvise,
                self.pidfd.as_raw_fd(),
                &raw const vector,
                1usize,
                advice as libc::c_int,
                0u32,
            )
        };
        match usize::try_from(advised) {
            Ok(bytes) if bytes == range.len => Ok(()),
            Ok(_) => Err(Errno::AGAIN),
            Err(_) => Err(crate::errno::last()),
        }
    }

    /// Reads `range` of its memory: all of it, or an error. Page faults that the process answers itself (`userfaultfd(2)`) are not
    /// waited for: `EIO`.
    pub fn read_memory(&self, range: VirtRange) -> Result<Vec<u8>> {
        let memory = self.open_file("mem")?;
        let mut bytes = Vec::with_capacity(range.len);
        while bytes.len() < range.len {
            let at = range.start + bytes.len();
            let left = range.len - bytes.len();
            let place = &mut bytes.spare_capacity_mut()[..left];
            let read = rustix::io::pread(&memory, place, at as u64)?.0.len();
            if read == 0 {
                return Err(Errno::IO);
            }
            // SAFETY: the call has initialised that many bytes after the existing ones.
            unsafe { bytes.set_len(bytes.len() + read) };
        }
        Ok(bytes)
    }

    /// Finds the pages of `range` (whole pages that are in memory) that hold only zeroes: one answer a page.
    pub fn zero_pages(&self, range: VirtRange, is_zero: &mut Vec<bool>) -> Result<()> {
        const BATCH: usize = 16;
        let page = crate::units::page_size_bytes();
        let memory = self.open_file("mem")?;
        let mut buffer: Vec<u8> = Vec::with_capacity(BATCH * page);
        is_zero.clear();
        let mut at = range;
        while !at.is_empty() {
            let most = at.len.min(BATCH * page);
            buffer.clear();
            let place: &mut [MaybeUninit<u8>] = &mut buffer.spare_capacity_mut()[..most];
            let (read, _) = rustix::io::pread(&memory, place, at.start as u64)?;
            if read.is_empty() || read.len() % page != 0 {
                return Err(Errno::IO);
            }
            is_zero.extend(read.chunks(page).map(is_all_zero));
            at = VirtRange::between(at.start + read.len(), range.end());
        }
        Ok(())
    }
}

fn is_all_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<32>();
    words.iter().all(|word| *word == [0; 32]) && rest.iter().all(|&byte| byte == 0)
}

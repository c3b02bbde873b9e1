#![allow(unsafe_code)]
//! userfaultfd: register, write-protect, continue, copy, move, wake, unregister, and its events.
//!
//! `userfaultfd(2)`, `ioctl_userfaultfd(2)`. `EAGAIN` (the address space is changing: a remap event
//! waits to be read) and `EEXIST` (the page is already mapped) are outcomes, not errors.
//!
//! # Safety
//! The ioctls here read and write only the structures passed to them, with the kernel's layouts (checked below); they
//! change the address space only in ranges that were registered, of the process that opened the descriptor.

mod messages;

use core::ffi::c_void;

use bitflags::bitflags;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, Setter, Updater, opcode};

use crate::failpoints::{self, Op};
use crate::reserved_fd::ReservedFd;
use crate::units::VirtRange;
use crate::{AsFd, AsRawFd, Errno, OwnedFd, Result};

pub use messages::{EventCounts, Message};

const GROUP: u8 = 0xAA;
const API: u64 = 0xAA;

bitflags! {
    /// `UFFD_FEATURE_*`
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u64 {
        /// Tells write-protect faults from others.
        const PAGEFAULT_FLAG_WP = 1 << 0;
        /// `mremap` moves whole page-table subtrees and sends an event.
        const EVENT_REMAP = 1 << 2;
        /// Missing faults on shmem.
        const MISSING_SHMEM = 1 << 5;
        /// Minor faults on hugetlb.
        const MINOR_HUGETLBFS = 1 << 9;
        /// Minor faults on shmem.
        const MINOR_SHMEM = 1 << 10;
        /// Write protection on shmem and hugetlb, kept for pages not yet there (Linux 5.19).
        const WP_HUGETLBFS_SHMEM = 1 << 12;
        /// Pages can be moved into a range (Linux 6.8).
        const MOVE = 1 << 16;
    }

    /// The faults on a registered range that wait for us.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct RegisterMode: u64 {
        /// No page there.
        const MISSING = 1 << 0;
        /// A write to a write-protected page.
        const WP = 1 << 1;
        /// The page is in the page cache, but not mapped here.
        const MINOR = 1 << 2;
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RangeArg {
    start: u64,
    len: u64,
}

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtectArg {
    range: RangeArg,
    mode: u64,
}

#[repr(C)]
struct ContinueArg {
    range: RangeArg,
    mode: u64,
    mapped: i64,
}

/// `struct uffdio_copy` and `struct uffdio_move`.
#[repr(C)]
struct FillArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    filled: i64,
}

const _: () = {
    assert!(size_of::<ApiArg>() == 24);
    assert!(size_of::<RegisterArg>() == 32);
    assert!(size_of::<WriteProtectArg>() == 24);
    assert!(size_of::<ContinueArg>() == 32);
    assert!(size_of::<FillArg>() == 40);
};

impl From<VirtRange> for RangeArg {
    fn from(range: VirtRange) -> Self {
        Self { start: range.start as u64, len: range.len as u64 }
    }
}

/// The way in which a descriptor was obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// `userfaultfd(2)`
    Syscall,
    /// `/dev/userfaultfd`
    Device,
}

/// The outcome of a request on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Done.
    Done,
    /// `EAGAIN`: the address space is changing; `done_bytes` of the range are done.
    Again {
        /// Bytes from the start of the range that need no further request.
        done_bytes: u64,
    },
    /// `EEXIST`: the page is mapped already.
    AlreadyMapped,
}

/// A userfaultfd, of this process or [received](Uffd::received) from another.
#[derive(Debug)]
pub struct Uffd<F: AsFd = OwnedFd> {
    fd: F,
}

/// Opens a userfaultfd that also serves faults in kernel mode, so that system calls into a range
/// wait like any other access. `EPERM`: neither `CAP_SYS_PTRACE`, nor
/// `vm.unprivileged_userfaultfd=1`, nor access to `/dev/userfaultfd`.
pub fn open() -> Result<(OwnedFd, Origin)> {
    failpoints::check(Op::UffdOpen)?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: userfaultfd(2) takes flags and makes a descriptor.
    let fd = unsafe { crate::passthrough::by_number()(libc::SYS_userfaultfd, flags) };
    if fd >= 0 {
        // SAFETY: the kernel just made this descriptor for us.
        let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) };
        return Ok((fd, Origin::Syscall));
    }
    let refused = crate::errno::last();
    let device = rustix::fs::open(
        "/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
    )
    .map_err(|_| refused)?;
    // SAFETY: the opcode is USERFAULTFD_IOC_NEW, and its argument the flags.
    let fd = unsafe { ioctl::ioctl(&device, NewFromDevice { flags }) }.map_err(|_| refused)?;
    Ok((fd, Origin::Device))
}

/// Like [`open`], for this process [alone](ReservedFd::open).
pub fn open_reserved() -> Result<ReservedFd> {
    ReservedFd::open(|| open().map(|(fd, _)| fd))
}

/// Opens a userfaultfd that serves only faults in user mode (Linux 5.11). It needs no privilege.
pub fn open_for_user_mode() -> Result<OwnedFd> {
    const USER_MODE_ONLY: i32 = 1;
    failpoints::check(Op::UffdOpen)?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: userfaultfd(2) takes flags and makes a descriptor.
    let fd = unsafe { crate::passthrough::by_number()(libc::SYS_userfaultfd, flags) };
    if fd < 0 {
        return Err(crate::errno::last());
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) })
}

struct NewFromDevice {
    flags: i32,
}

// SAFETY: USERFAULTFD_IOC_NEW takes flags by value and returns a new descriptor.
unsafe impl Ioctl for NewFromDevice {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(GROUP, 0)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.flags as usize as *mut c_void
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<OwnedFd> {
        // SAFETY: a non-negative answer is a descriptor the kernel made for the caller.
        Ok(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(out) })
    }
}

impl Uffd {
    /// Takes the descriptor of another process, which has agreed with the kernel: ranges are that one's. `None` if it is
    /// another kind of file, or one that blocks.
    pub fn received(fd: OwnedFd) -> Option<Self> {
        const KIND: &str = "anon_inode:[userfaultfd]";
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        let flags = rustix::fs::fcntl_getfl(&fd).ok()?;
        let is_right = link.to_str() == Some(KIND) && flags.contains(OFlags::NONBLOCK);
        is_right.then_some(Self { fd })
    }
}

impl<F: AsFd> Uffd<F> {
    /// Agrees with the kernel on `features`; `EINVAL` if it lacks one of them.
    pub fn new(fd: F, features: Features) -> Result<Self> {
        let mut arg = ApiArg { api: API, features: features.bits(), ioctls: 0 };
        // SAFETY: UFFDIO_API with its own structure.
        unsafe {
            let call = Updater::<{ opcode::read_write::<ApiArg>(GROUP, 0x3F) }, _>::new(&mut arg);
            ioctl::ioctl(&fd, call)
        }?;
        Ok(Self { fd })
    }

    /// The descriptor.
    pub fn get_ref(&self) -> &F {
        &self.fd
    }

    /// Makes faults of `mode` on `range` wait for us. Repeating it is harmless.
    pub fn register(&self, range: VirtRange, mode: RegisterMode) -> Result<()> {
        failpoints::check(Op::UffdRegister)?;
        let mut arg = RegisterArg { range: range.into(), mode: mode.bits(), ioctls: 0 };
        // SAFETY: UFFDIO_REGISTER with its own structure.
        unsafe {
            let call = Updater::<{ opcode::read_write::<RegisterArg>(GROUP, 0) }, _>::new(&mut arg);
            ioctl::ioctl(&self.fd, call)
        }
    }

    /// Ends [`Self::register`]. It wakes waiting threads if missing faults were registered; after a
    /// registration for write protection alone, [`Self::wake`] them.
    pub fn unregister(&self, range: VirtRange) -> Result<()> {
        failpoints::check(Op::UffdUnregister)?;
        // SAFETY: UFFDIO_UNREGISTER reads its own structure.
        unsafe {
            let call =
                Setter::<{ opcode::read::<RangeArg>(GROUP, 1) }, RangeArg>::new(range.into());
            ioctl::ioctl(&self.fd, call)
        }
    }

    /// Wakes every thread that waits on a fault in `range`; the thread retries its access.
    pub fn wake(&self, range: VirtRange) -> Result<()> {
        failpoints::check(Op::UffdWake)?;
        // SAFETY: UFFDIO_WAKE reads its own structure.
        unsafe {
            let call =
                Setter::<{ opcode::read::<RangeArg>(GROUP, 2) }, RangeArg>::new(range.into());
            ioctl::ioctl(&self.fd, call)
        }
    }

    /// Write-protects `range`, or removes the protection and wakes the writers.
    pub fn write_protect(&self, range: VirtRange, protect: bool) -> Result<Outcome> {
        let mut arg = WriteProtectArg { range: range.into(), mode: u64::from(protect) };
        let answer = failpoints::check(Op::UffdWriteProtect).and_then(|()| {
            // SAFETY: UFFDIO_WRITEPROTECT with its own structure.
            unsafe {
                let call = Updater::<{ opcode::read_write::<WriteProtectArg>(GROUP, 6) }, _>::new(
                    &mut arg,
                );
                ioctl::ioctl(&self.fd, call)
            }
        });
        match answer {
            Ok(()) => Ok(Outcome::Done),
            Err(Errno::AGAIN) => Ok(Outcome::Again { done_bytes: 0 }),
            Err(errno) => Err(errno),
        }
    }

    /// Maps the page-cache pages of `range` and wakes the threads that wait for them (minor
    /// faults).
    pub fn map_cached(&self, range: VirtRange) -> Result<Outcome> {
        let mut arg = ContinueArg { range: range.into(), mode: 0, mapped: 0 };
        // SAFETY: UFFDIO_CONTINUE with its own structure.
        let answer = unsafe {
            let call = Updater::<{ opcode::read_write::<ContinueArg>(GROUP, 7) }, _>::new(&mut arg);
            ioctl::ioctl(&self.fd, call)
        };
        outcome(answer, arg.mapped)
    }

    /// Fills `range`, where pages are missing, with `content` of its length, and wakes the threads that wait for them.
    /// `AlreadyMapped`: the first page of the range exists already, and no thread was woken.
    pub fn copy(&self, range: VirtRange, content: &[u8]) -> Result<Outcome> {
        if content.len() != range.len {
            return Err(Errno::INVAL);
        }
        self.copy_from(range, content.as_ptr() as usize)
    }

    /// Like [`Self::copy`], with the content at an address of this process, which may change meanwhile. `EFAULT`: there
    /// is none.
    pub fn copy_from(&self, range: VirtRange, source: usize) -> Result<Outcome> {
        let mut arg = FillArg::new(range, source);
        let answer = failpoints::check(Op::UffdCopy).and_then(|()| {
            // SAFETY: UFFDIO_COPY with its own structure. The kernel reads the source like a file's content that write(2)
            // is given, and fails where there is no memory.
            unsafe {
                let call = Updater::<{ opcode::read_write::<FillArg>(GROUP, 3) }, _>::new(&mut arg);
                ioctl::ioctl(&self.fd, call)
            }
        });
        outcome(answer, arg.filled)
    }

    /// Maps the zero page in `range`, where pages are missing (`UFFDIO_ZEROPAGE`). In a private mapping of a file it
    /// hides the file's page, like a copy does, and a write copies it. `AlreadyMapped`: the first page of the range
    /// exists already.
    pub fn map_zeroes(&self, range: VirtRange) -> Result<Outcome> {
        let mut arg = ContinueArg { range: range.into(), mode: 0, mapped: 0 };
        let answer = failpoints::check(Op::UffdCopy).and_then(|()| {
            // SAFETY: UFFDIO_ZEROPAGE with `struct uffdio_zeropage`, which has the same fields as the structure of
            // UFFDIO_CONTINUE. Only missing pages are mapped.
            unsafe {
                let call =
                    Updater::<{ opcode::read_write::<ContinueArg>(GROUP, 4) }, _>::new(&mut arg);
                ioctl::ioctl(&self.fd, call)
            }
        });
        outcome(answer, arg.mapped)
    }

    /// Like [`Self::copy`], but moves the pages at `source` themselves: private, anonymous and not shared with another
    /// process. The source is left missing, or reads as zeroes. `EBUSY`: one of the pages is shared.
    ///
    /// # Safety
    /// The caller owns the memory at `source`, of the same length as the range.
    pub unsafe fn move_pages(&self, range: VirtRange, source: usize) -> Result<Outcome> {
        let mut arg = FillArg::new(range, source);
        // SAFETY: UFFDIO_MOVE with its own structure; the caller owns the memory that it takes.
        let answer = unsafe {
            let call = Updater::<{ opcode::read_write::<FillArg>(GROUP, 5) }, _>::new(&mut arg);
            ioctl::ioctl(&self.fd, call)
        };
        outcome(answer, arg.filled)
    }
}

impl FillArg {
    fn new(range: VirtRange, source: usize) -> Self {
        let (dst, len) = (range.start as u64, range.len as u64);
        Self { dst, src: source as u64, len, mode: 0, filled: 0 }
    }
}

/// `done` is the count that the kernel left in the structure.
fn outcome(answer: Result<()>, done: i64) -> Result<Outcome> {
    match answer {
        Ok(()) => Ok(Outcome::Done),
        Err(Errno::AGAIN) => Ok(Outcome::Again { done_bytes: u64::try_from(done).unwrap_or(0) }),
        Err(Errno::EXIST) => Ok(Outcome::AlreadyMapped),
        Err(errno) => Err(errno),
    }
}

impl<F: AsFd> AsFd for Uffd<F> {
    fn as_fd(&self) -> crate::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#![allow(unsafe_code)]
//! userfaultfd: register, write-protect, continue, copy, move, wake, unregister, and its events.
//!
//! `userfaultfd(2)`, `ioctl_userfaultfd(2)`. `EAGAIN` (the address space is changing: a remap event
//! waits to be read) and `EEXIST` (the page is there already) are outcomes, not errors.
//!
//! # Safety
//! The ioctls here read and write only the structures handed to them, whose layouts are the kernel's
//! (checked below); what they do to the address space they do to ranges the caller registered.

use core::ffi::c_void;

use bitflags::bitflags;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, Setter, Updater, opcode};

use crate::failpoints::{self, Op};
use crate::units::VirtRange;
use crate::{AsFd, Errno, OwnedFd, Result};

const GROUP: u8 = 0xAA;
const API: u64 = 0xAA;

bitflags! {
    /// `UFFD_FEATURE_*`
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u64 {
        /// Write-protect faults are told apart.
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

    /// Which faults on a registered range wait for us.
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

/// One `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    argument: [u64; 3],
}

/// Of a page fault, behind its flags.
const ADDRESS_AT: usize = core::mem::offset_of!(Message, argument) + 8;

const _: () = {
    assert!(size_of::<ApiArg>() == 24);
    assert!(size_of::<RegisterArg>() == 32);
    assert!(size_of::<WriteProtectArg>() == 24);
    assert!(size_of::<ContinueArg>() == 32);
    assert!(size_of::<FillArg>() == 40);
    assert!(size_of::<Message>() == 32);
};

impl From<VirtRange> for RangeArg {
    fn from(range: VirtRange) -> Self {
        Self { start: range.start as u64, len: range.len as u64 }
    }
}

/// How a descriptor was obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// `userfaultfd(2)`
    Syscall,
    /// `/dev/userfaultfd`
    Device,
}

/// What became of a request on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Done.
    Done,
    /// `EAGAIN`: the address space is changing; `done_bytes` of the range are done.
    Again {
        /// Bytes from the start of the range that need not be asked for again.
        done_bytes: u64,
    },
    /// `EEXIST`: the page is mapped already.
    AlreadyMapped,
}

/// A userfaultfd, of the process that opened it only.
#[derive(Debug)]
pub struct Uffd<F: AsFd = OwnedFd> {
    fd: F,
}

/// Opens a userfaultfd that serves faults of kernel mode too, so that system calls into a range
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
    let refused = crate::process::last_errno();
    let device = rustix::fs::open(
        "/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
    )
    .map_err(|_| refused)?;
    // SAFETY: the opcode is USERFAULTFD_IOC_NEW, whose argument is the flags.
    let fd = unsafe { ioctl::ioctl(&device, NewFromDevice { flags }) }.map_err(|_| refused)?;
    Ok((fd, Origin::Device))
}

/// Opens a userfaultfd that serves faults of user mode alone (Linux 5.11). It needs no privilege.
pub fn open_for_user_mode() -> Result<OwnedFd> {
    const USER_MODE_ONLY: i32 = 1;
    failpoints::check(Op::UffdOpen)?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: userfaultfd(2) takes flags and makes a descriptor.
    let fd = unsafe { crate::passthrough::by_number()(libc::SYS_userfaultfd, flags) };
    if fd < 0 {
        return Err(crate::process::last_errno());
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

    /// Has faults of `mode` on `range` wait for us. Asking again for the same is nothing special.
    pub fn register(&self, range: VirtRange, mode: RegisterMode) -> Result<()> {
        failpoints::check(Op::UffdRegister)?;
        let mut arg = RegisterArg { range: range.into(), mode: mode.bits(), ioctls: 0 };
        // SAFETY: UFFDIO_REGISTER with its own structure.
        unsafe {
            let call = Updater::<{ opcode::read_write::<RegisterArg>(GROUP, 0) }, _>::new(&mut arg);
            ioctl::ioctl(&self.fd, call)
        }
    }

    /// Ends [`Self::register`]. Wakes who waits there if missing faults were registered; after a
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

    /// Wakes every thread that waits on a fault in `range`; it tries its access again.
    pub fn wake(&self, range: VirtRange) -> Result<()> {
        failpoints::check(Op::UffdWake)?;
        // SAFETY: UFFDIO_WAKE reads its own structure.
        unsafe {
            let call =
                Setter::<{ opcode::read::<RangeArg>(GROUP, 2) }, RangeArg>::new(range.into());
            ioctl::ioctl(&self.fd, call)
        }
    }

    /// Write-protects `range`, or takes the protection away and wakes the writers.
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

    /// Maps the page-cache pages of `range` and wakes who waits for them (minor faults).
    pub fn map_cached(&self, range: VirtRange) -> Result<Outcome> {
        let mut arg = ContinueArg { range: range.into(), mode: 0, mapped: 0 };
        // SAFETY: UFFDIO_CONTINUE with its own structure.
        let answer = unsafe {
            let call = Updater::<{ opcode::read_write::<ContinueArg>(GROUP, 7) }, _>::new(&mut arg);
            ioctl::ioctl(&self.fd, call)
        };
        outcome(answer, arg.mapped)
    }

    /// Fills `range`, where pages are missing, with `content` of its length, and wakes who waits for
    /// them. `AlreadyMapped`: the first page of the range is there, and nobody was woken.
    pub fn copy(&self, range: VirtRange, content: &[u8]) -> Result<Outcome> {
        if content.len() != range.len {
            return Err(Errno::INVAL);
        }
        let mut arg = FillArg::new(range, content.as_ptr() as usize);
        let answer = failpoints::check(Op::UffdCopy).and_then(|()| {
            // SAFETY: UFFDIO_COPY with its own structure; it reads as much as `content` has.
            unsafe {
                let call = Updater::<{ opcode::read_write::<FillArg>(GROUP, 3) }, _>::new(&mut arg);
                ioctl::ioctl(&self.fd, call)
            }
        });
        outcome(answer, arg.filled)
    }

    /// Maps the zero page in `range`, where pages are missing (`UFFDIO_ZEROPAGE`). In a private mapping of a file it hides
    /// the file's page, as a copy does, and a write copies it. `AlreadyMapped`: the first page of the range is there.
    pub fn map_zeroes(&self, range: VirtRange) -> Result<Outcome> {
        let mut arg = ContinueArg { range: range.into(), mode: 0, mapped: 0 };
        let answer = failpoints::check(Op::UffdCopy).and_then(|()| {
            // SAFETY: UFFDIO_ZEROPAGE with `struct uffdio_zeropage`, which has the fields of that of UFFDIO_CONTINUE. Only
            // missing pages are mapped.
            unsafe {
                let call =
                    Updater::<{ opcode::read_write::<ContinueArg>(GROUP, 4) }, _>::new(&mut arg);
                ioctl::ioctl(&self.fd, call)
            }
        });
        outcome(answer, arg.mapped)
    }

    /// As [`Self::copy`], with the pages at `source` themselves: private, anonymous and of this process
    /// alone. What they leave behind is missing, or zeroes. `EBUSY`: one of them is not its own.
    ///
    /// # Safety
    /// The caller owns the memory at `source`, as long as the range.
    pub unsafe fn move_pages(&self, range: VirtRange, source: usize) -> Result<Outcome> {
        let mut arg = FillArg::new(range, source);
        // SAFETY: UFFDIO_MOVE with its own structure; the caller owns what it takes.
        let answer = unsafe {
            let call = Updater::<{ opcode::read_write::<FillArg>(GROUP, 5) }, _>::new(&mut arg);
            ioctl::ioctl(&self.fd, call)
        };
        outcome(answer, arg.filled)
    }

    /// Reads the events that wait, without blocking. Reading a remap event is what lets the
    /// `mremap` of that range return.
    pub fn read_events(&self) -> Result<EventCounts> {
        self.read_faults(|_| {})
    }

    /// As [`Self::read_events`], and says at which address each thread waits, rounded down to a page.
    pub fn read_faults(&self, mut fault: impl FnMut(usize)) -> Result<EventCounts> {
        let mut counts = EventCounts::default();
        loop {
            let mut buffer = [0u8; 16 * size_of::<Message>()];
            let read = match self.read_once(&mut buffer) {
                Ok(read) => read,
                Err(Errno::AGAIN) => return Ok(counts),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            for message in buffer[..read].chunks_exact(size_of::<Message>()) {
                match message[0] {
                    0x12 => {
                        counts.faults += 1;
                        let address = message[ADDRESS_AT..].first_chunk().copied();
                        fault(usize::from_ne_bytes(address.expect("a whole message")));
                    }
                    0x14 => counts.remaps += 1,
                    _ => counts.others += 1,
                }
            }
        }
    }
}

impl<F: AsFd> Uffd<F> {
    /// By `readv(2)` if `read(2)` is refused, as a seccomp filter may.
    fn read_once(&self, buffer: &mut [u8]) -> Result<usize> {
        let read =
            failpoints::check(Op::UffdRead).and_then(|()| rustix::io::read(&self.fd, &mut *buffer));
        match read {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::BADF) => read,
            Err(errno) => {
                let again = failpoints::check(Op::UffdRead).and_then(|()| {
                    rustix::io::readv(&self.fd, &mut [std::io::IoSliceMut::new(buffer)])
                });
                match again {
                    Ok(_) | Err(Errno::AGAIN | Errno::INTR) => again,
                    Err(_) => Err(errno),
                }
            }
        }
    }
}

impl FillArg {
    fn new(range: VirtRange, source: usize) -> Self {
        let (dst, len) = (range.start as u64, range.len as u64);
        Self { dst, src: source as u64, len, mode: 0, filled: 0 }
    }
}

/// `done`: what the kernel left in the structure.
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

/// What [`Uffd::read_events`] read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventCounts {
    /// Threads that ran into a fault and wait.
    pub faults: u64,
    /// Ranges moved.
    pub remaps: u64,
    /// Anything else.
    pub others: u64,
}

impl EventCounts {
    /// Nothing was there.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

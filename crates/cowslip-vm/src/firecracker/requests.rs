#![allow(unsafe_code)]
//! Requests on the userfaultfd of another process, and its messages. [`cowslip_sys::uffd`] has requests on descriptors that
//! this process opened.
//!
//! # Safety
//! A request changes the memory of the process that opened the descriptor, where that is registered with one. It reads
//! and writes the structure that it is given, of the kernel's layout, and reads the content at an address of this
//! process, as `read_exact_at` of `/proc/self/mem` would: `EFAULT` if there is none.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cowslip::units::VirtRange;
use cowslip_sys::Errno;
use cowslip_sys::uffd::Outcome;
use rustix::fs::OFlags;
use rustix::ioctl::{self, Setter, Updater, opcode};

/// `UFFDIO`
const GROUP: u8 = 0xAA;
/// The link of a userfaultfd in `/proc/self/fd`.
const KIND: &str = "anon_inode:[userfaultfd]";
/// `struct uffd_msg`
const MESSAGE_BYTES: usize = 32;
/// Messages of one read.
const AT_ONCE: usize = 64;

#[repr(C)]
struct RangeArg {
    start: u64,
    len: u64,
}

/// `struct uffdio_copy`
#[repr(C)]
struct CopyArg {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

/// `struct uffdio_zeropage`
#[repr(C)]
struct ZeroArg {
    range: RangeArg,
    mode: u64,
    mapped: i64,
}

const _: () = assert!(size_of::<CopyArg>() == 40 && size_of::<ZeroArg>() == 32);

/// A message of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// A thread waits for the page at this address.
    Missing(usize),
    /// The pages of this range are gone, or will be once the message is read.
    Removed(VirtRange),
    /// Anything that a machine's monitor does not ask for, by its number.
    Other(u8),
}

/// The userfaultfd of another process.
#[derive(Debug)]
pub(super) struct Requests(File);

impl Requests {
    /// Takes a received descriptor. `None` if it is another kind of file, or one that blocks.
    pub(super) fn new(fd: OwnedFd) -> Option<Self> {
        let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        let flags = rustix::fs::fcntl_getfl(&fd).ok()?;
        let is_right = link.to_str() == Some(KIND) && flags.contains(OFlags::NONBLOCK);
        is_right.then(|| Self(File::from(fd)))
    }

    /// Fills missing pages with the content at an address of this process, and wakes the threads that wait for them.
    pub(super) fn copy(&self, range: VirtRange, from: usize) -> Result<Outcome, Errno> {
        let (to, len) = (range.start as u64, range.len as u64);
        let mut arg = CopyArg { to, from: from as u64, len, mode: 0, copied: 0 };
        // SAFETY: UFFDIO_COPY with its own structure; see the module.
        let answer = unsafe {
            let call = Updater::<{ opcode::read_write::<CopyArg>(GROUP, 3) }, _>::new(&mut arg);
            ioctl::ioctl(&self.0, call)
        };
        outcome(answer, arg.copied)
    }

    /// Makes missing base pages read as zeroes, and wakes the threads that wait for them.
    pub(super) fn map_zeroes(&self, range: VirtRange) -> Result<Outcome, Errno> {
        let mut arg = ZeroArg { range: range.into(), mode: 0, mapped: 0 };
        // SAFETY: UFFDIO_ZEROPAGE with its own structure; see the module.
        let answer = unsafe {
            let call = Updater::<{ opcode::read_write::<ZeroArg>(GROUP, 4) }, _>::new(&mut arg);
            ioctl::ioctl(&self.0, call)
        };
        outcome(answer, arg.mapped)
    }

    /// Wakes the threads that wait for pages of the range: they try again.
    pub(super) fn wake(&self, range: VirtRange) -> Result<(), Errno> {
        // SAFETY: UFFDIO_WAKE reads its own structure.
        unsafe {
            let call =
                Setter::<{ opcode::read::<RangeArg>(GROUP, 2) }, RangeArg>::new(range.into());
            ioctl::ioctl(&self.0, call)
        }
    }

    /// Leaves the range to the kernel: pages that are missing are zeroes from then on.
    pub(super) fn unregister(&self, range: VirtRange) -> Result<(), Errno> {
        // SAFETY: UFFDIO_UNREGISTER reads its own structure.
        unsafe {
            let call =
                Setter::<{ opcode::read::<RangeArg>(GROUP, 1) }, RangeArg>::new(range.into());
            ioctl::ioctl(&self.0, call)
        }
    }

    /// Reads the waiting messages, so many at a time. It does not wait.
    pub(super) fn read(&mut self, mut take: impl FnMut(Message)) -> Result<(), Errno> {
        let mut buffer = [0; AT_ONCE * MESSAGE_BYTES];
        let read = match self.0.read(&mut buffer) {
            Ok(read) => read,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR) => return Ok(()),
                errno => return Err(errno.unwrap_or(Errno::IO)),
            },
        };
        for message in buffer[..read].chunks_exact(MESSAGE_BYTES) {
            let (message, brought) = parse(message);
            if let Some(fd) = brought.filter(|fd| *fd > 0) {
                // SAFETY: the kernel made this descriptor for the reader of the message, which is this.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            take(message);
        }
        Ok(())
    }
}

/// Reads a message, and the descriptor that came with it: that of a child.
fn parse(bytes: &[u8]) -> (Message, Option<i32>) {
    /// A fault on a page that is there: a write to a protected one, or a minor fault.
    const NOT_MISSING: u64 = 1 << 1 | 1 << 2;
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let message = match bytes[0] {
        0x12 if word(8) & NOT_MISSING == 0 => Message::Missing(word(16) as usize),
        0x15 | 0x16 => Message::Removed(VirtRange::between(word(8) as usize, word(16) as usize)),
        other => Message::Other(other),
    };
    let child = i32::from_ne_bytes(bytes[8..12].try_into().expect("four bytes"));
    (message, (bytes[0] == 0x13).then_some(child))
}

/// `done` is the count that the kernel left in the structure.
fn outcome(answer: Result<(), Errno>, done: i64) -> Result<Outcome, Errno> {
    match answer {
        Ok(()) => Ok(Outcome::Done),
        Err(Errno::AGAIN) => Ok(Outcome::Again { done_bytes: u64::try_from(done).unwrap_or(0) }),
        Err(Errno::EXIST) => Ok(Outcome::AlreadyMapped),
        Err(errno) => Err(errno),
    }
}

impl From<VirtRange> for RangeArg {
    fn from(range: VirtRange) -> Self {
        Self { start: range.start as u64, len: range.len as u64 }
    }
}

impl AsFd for Requests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: u8, words: [u64; 3]) -> Vec<u8> {
        let mut bytes = vec![event, 0, 0, 0, 0, 0, 0, 0];
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn messages_are_told_apart() {
        let parsed = |event, words| parse(&message(event, words)).0;
        assert_eq!(parsed(0x12, [1, 0x7000, 0]), Message::Missing(0x7000));
        assert_eq!(parsed(0x12, [2, 0x7000, 0]), Message::Other(0x12));
        let removed = Message::Removed(VirtRange::new(0x1000, 0x2000));
        assert_eq!(parsed(0x15, [0x1000, 0x3000, 0]), removed);
        assert_eq!(parse(&message(0x13, [77, 0, 0])), (Message::Other(0x13), Some(77)));
        assert_eq!(parsed(0x14, [0, 0, 0]), Message::Other(0x14));
    }
}

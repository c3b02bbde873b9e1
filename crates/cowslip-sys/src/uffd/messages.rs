//! The messages of a userfaultfd (`struct uffd_msg`, `userfaultfd(2)`).

use std::os::fd::FromRawFd;

use super::Uffd;
use crate::failpoints::{self, Op};
use crate::units::VirtRange;
use crate::{AsFd, Errno, OwnedFd, Result};

/// The length of one.
const BYTES: usize = 32;
/// Messages of one read.
const AT_ONCE: usize = 64;

/// A message of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A thread waits.
    Fault {
        /// The address that it touched, rounded down to a page.
        address: usize,
        /// No page is there. Otherwise it is write-protected, or in the page cache alone.
        is_missing: bool,
    },
    /// A range was moved.
    Remapped,
    /// The pages of this range are gone, or will be once the message is read.
    Removed(VirtRange),
    /// Another event, by its number.
    Other(u8),
}

/// The events that [`Uffd::read_events`] read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventCounts {
    /// Threads that hit a fault and wait.
    pub faults: u64,
    /// Ranges moved.
    pub remaps: u64,
    /// Anything else.
    pub others: u64,
}

impl EventCounts {
    /// Returns true if there were no events.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl<F: AsFd> Uffd<F> {
    /// Reads the pending events, without blocking. The `mremap` of a range returns only once its
    /// remap event has been read.
    pub fn read_events(&self) -> Result<EventCounts> {
        self.read_faults(|_| {})
    }

    /// Like [`Self::read_events`], and passes on the address at which each thread waits, rounded down to a page.
    pub fn read_faults(&self, mut fault: impl FnMut(usize)) -> Result<EventCounts> {
        let mut counts = EventCounts::default();
        let mut count = |message| match message {
            Message::Fault { address, .. } => {
                counts.faults += 1;
                fault(address);
            }
            Message::Remapped => counts.remaps += 1,
            Message::Removed(_) | Message::Other(_) => counts.others += 1,
        };
        while self.read_messages(&mut count)? > 0 {}
        Ok(counts)
    }

    /// Reads pending messages once, without blocking, and returns their number: 0 if there was none.
    pub fn read_messages(&self, mut take: impl FnMut(Message)) -> Result<usize> {
        let mut buffer = [0; AT_ONCE * BYTES];
        let read = loop {
            match self.read_once(&mut buffer) {
                Ok(read) => break read,
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        };
        let (messages, _) = buffer[..read].as_chunks();
        for message in messages {
            let (message, child) = parse(message);
            if let Some(fd) = child.filter(|fd| *fd > 0) {
                // SAFETY: the kernel made this descriptor for the reader of the message, which is this.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            take(message);
        }
        Ok(messages.len())
    }

    /// Reads once, with `readv(2)` if `read(2)` is refused, for example by a seccomp filter.
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

/// Reads a message, and the descriptor that came with it: that of a child.
fn parse(message: &[u8; BYTES]) -> (Message, Option<i32>) {
    /// `UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_MINOR`
    const NOT_MISSING: u64 = 1 << 1 | 1 << 2;
    let word = |at: usize| u64::from_ne_bytes(*message[at..].first_chunk().expect("eight bytes"));
    let parsed = match message[0] {
        0x12 => {
            Message::Fault { address: word(16) as usize, is_missing: word(8) & NOT_MISSING == 0 }
        }
        0x14 => Message::Remapped,
        0x15 | 0x16 => Message::Removed(VirtRange::between(word(8) as usize, word(16) as usize)),
        other => Message::Other(other),
    };
    (parsed, (message[0] == 0x13).then_some(word(8) as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: u8, words: [u64; 3]) -> [u8; BYTES] {
        let mut bytes = vec![event, 0, 0, 0, 0, 0, 0, 0];
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.try_into().unwrap()
    }

    #[test]
    fn messages_are_told_apart() {
        let parsed = |event, words| parse(&message(event, words)).0;
        let fault = |is_missing| Message::Fault { address: 0x7000, is_missing };
        assert_eq!(parsed(0x12, [1, 0x7000, 0]), fault(true));
        assert_eq!(parsed(0x12, [2, 0x7000, 0]), fault(false));
        assert_eq!(parsed(0x12, [5, 0x7000, 0]), fault(false));
        let removed = Message::Removed(VirtRange::new(0x1000, 0x2000));
        assert_eq!(parsed(0x15, [0x1000, 0x3000, 0]), removed);
        assert_eq!(parse(&message(0x13, [77, 0, 0])), (Message::Other(0x13), Some(77)));
        assert_eq!(parsed(0x14, [0, 0, 0]), Message::Remapped);
    }
}

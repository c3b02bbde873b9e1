//! The flags of page frames (`/proc/kpageflags`), for callers that may learn the frames of a
//! process.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::failpoints::{self, Op};
use crate::{Errno, Result};

const ANONYMOUS: u64 = 1 << 12;
const SWAP_BACKED: u64 = 1 << 14;
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;
const TRANSPARENT_HUGE: u64 = 1 << 22;
const ZERO_PAGE: u64 = 1 << 24;
/// No compound page of anonymous memory is larger than 2^9 pages.
const HUGE_ORDER: u32 = 9;

/// Reads the flags of page frames.
#[derive(Debug)]
pub struct PageFlags(File);

impl PageFlags {
    /// `EACCES` or `EPERM` for users other than root.
    pub fn open() -> Result<Self> {
        failpoints::check(Op::PageFlags)?;
        File::open("/proc/kpageflags").map(Self).map_err(|error| errno_of(&error))
    }

    /// Returns true for the zero page, and for a part of the huge one.
    pub fn is_zero(&self, frame: u64) -> Result<bool> {
        Ok(self.flags(frame)? & ZERO_PAGE != 0)
    }

    /// Returns true if a transparent huge page of `frames` frames begins there: a smaller one, aligned to its size,
    /// would end before the middle or begin anew there.
    pub fn begins_huge(&self, frame: u64, frames: u64) -> Result<bool> {
        let head = COMPOUND_HEAD | TRANSPARENT_HUGE;
        Ok(frame.is_multiple_of(frames)
            && self.flags(frame)? & head == head
            && self.flags(frame + frames / 2)? & COMPOUND_TAIL != 0)
    }

    /// Counts the frames that hold lazily freed memory (`MADV_FREE`): anonymous memory that has lost its claim to a
    /// place in swap. A page written since then counts until the kernel next tries to reclaim it. Frames that have gone
    /// away meanwhile do not count.
    pub fn count_lazily_freed(&self, frames: &[u64]) -> Result<u64> {
        let mut count = 0;
        let mut bytes = vec![0; frames.len() * 8];
        for run in frames.chunk_by(|frame, next| frame + 1 == *next) {
            let bytes = &mut bytes[..run.len() * 8];
            let read = match self.0.read_at(bytes, run[0] * 8).map_err(|error| errno_of(&error)) {
                Err(Errno::IO | Errno::NXIO) => continue,
                read => read?,
            };
            let words = bytes[..read].chunks_exact(8);
            let words = words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
            let mut head = None;
            for (&frame, own) in run.iter().zip(words) {
                // The claim belongs to the whole compound page, and only its head has the flag before Linux 6.10.
                let flags = match head {
                    _ if own & COMPOUND_TAIL == 0 => own,
                    Some(head) => head,
                    None => self.head_of(frame)?,
                };
                head = (own & (COMPOUND_HEAD | COMPOUND_TAIL) != 0).then_some(flags);
                count += u64::from(flags & (ANONYMOUS | SWAP_BACKED) == ANONYMOUS);
            }
        }
        Ok(count)
    }

    /// The flags of the head of the compound page that a frame is part of; 0 if it is part of none by now.
    fn head_of(&self, frame: u64) -> Result<u64> {
        for order in 1..=HUGE_ORDER {
            match self.flags(frame >> order << order) {
                Ok(flags) if flags & COMPOUND_HEAD != 0 => return Ok(flags),
                Ok(_) | Err(Errno::IO | Errno::NXIO) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(0)
    }

    fn flags(&self, frame: u64) -> Result<u64> {
        let mut flags = [0; 8];
        self.0.read_exact_at(&mut flags, frame * 8).map_err(|error| errno_of(&error))?;
        Ok(u64::from_ne_bytes(flags))
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

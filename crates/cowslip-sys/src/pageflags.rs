//! What page frames are (`/proc/kpageflags`), for those who may know which a process has.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::failpoints::{self, Op};
use crate::{Errno, Result};

const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;
const TRANSPARENT_HUGE: u64 = 1 << 22;
const ZERO_PAGE: u64 = 1 << 24;

/// Says what page frames are.
#[derive(Debug)]
pub struct PageFlags(File);

impl PageFlags {
    /// `EACCES` or `EPERM` for others than root.
    pub fn open() -> Result<Self> {
        failpoints::check(Op::PageFlags)?;
        File::open("/proc/kpageflags").map(Self).map_err(|error| errno_of(&error))
    }

    /// Whether it is the zero page, or of the huge one.
    pub fn is_zero(&self, frame: u64) -> Result<bool> {
        Ok(self.flags(frame)? & ZERO_PAGE != 0)
    }

    /// Whether a transparent huge page of `frames` frames begins there: a smaller one that is aligned to
    /// its size would begin anew at its half, or have ended.
    pub fn begins_huge(&self, frame: u64, frames: u64) -> Result<bool> {
        let head = COMPOUND_HEAD | TRANSPARENT_HUGE;
        Ok(frame.is_multiple_of(frames)
            && self.flags(frame)? & head == head
            && self.flags(frame + frames / 2)? & COMPOUND_TAIL != 0)
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

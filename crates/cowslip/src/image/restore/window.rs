//! Addresses through which the threads of a restore fill the file behind an arena, and look at what they
//! filled.
//!
//! All of the file is mapped at once: a mapping a chunk would be two calls more for each, one after another
//! for all threads. What was filled counts twice in the process' resident memory until the window is closed.
//!
//! A [`Window`] owns its addresses until it is closed. Only threads of its restore know them, and each uses the
//! part of the chunk alone that it claimed.

use std::sync::atomic::{AtomicBool, Ordering::AcqRel};

use cowslip_sys::Errno;
use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use crate::arena::backing_file::{BackingFile, Pages};
use crate::arena::mapping::{OwnSpace, OwnedRange};

/// What is taken down at once, as the program's own calls wait meanwhile.
const PIECE_BYTES: usize = 64 * CHUNK_BYTES;

#[derive(Debug)]
pub(super) struct Window {
    /// Unmapped when the window is closed.
    range: OwnedRange,
    is_closed: AtomicBool,
}

impl Window {
    /// Maps the first `len` bytes of a file.
    pub(super) fn open(backing_file: &BackingFile, len: usize) -> Result<Self, Errno> {
        let range = OwnSpace::reserve(len.next_multiple_of(CHUNK_BYTES), CHUNK_BYTES)?.leak();
        let window = Self { range, is_closed: AtomicBool::new(false) };
        let shown = range.first(len);
        shown.map_file(backing_file.fd(), 0, Sharing::Shared, Prot::RW)?;
        // No child has any business with it, not even one made by a system call.
        shown.advise(Advice::DontFork)?;
        let _ = shown.advise(Advice::DontDump);
        if backing_file.pages == Pages::HugeMemfd {
            shown.advise(Advice::HugePage)?;
        }
        Ok(window)
    }

    /// Where a chunk of the file is to be seen.
    pub(super) fn chunk(&self, chunk: u32) -> OwnedRange {
        let start = self.range.start + chunk as usize * CHUNK_BYTES;
        self.range.part(VirtRange::new(start, CHUNK_BYTES))
    }

    /// When every chunk is there.
    pub(super) fn close(&self) {
        if self.is_closed.swap(true, AcqRel) {
            return;
        }
        for start in (self.range.start..self.range.end()).step_by(PIECE_BYTES) {
            let piece = VirtRange::between(start, self.range.end().min(start + PIECE_BYTES));
            // No chunk is claimed any more.
            let _ = self.range.part(piece).unmap();
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.close();
    }
}

//! Addresses through which the threads of a restore fill the file behind an arena, and check the result.
//!
//! All of the file is mapped at once: a mapping for each chunk would be two more calls, which all threads would make
//! one after another. Filled memory counts twice in the process' resident memory until the window is closed.
//!
//! A [`Window`] owns its addresses until it is closed. Only threads of its restore know them, and each uses only the
//! part of the chunk that it has claimed.

use std::sync::atomic::{AtomicBool, Ordering::AcqRel};

use cowslip_sys::Errno;
use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use crate::mapping::backing_file::{BackingFile, Pages};
use crate::mapping::{OwnSpace, OwnedRange};

/// Bytes unmapped at once; the program's own calls wait meanwhile.
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
        // Children do not need it, not even one made by a bare system call.
        shown.advise(Advice::DontFork)?;
        let _ = shown.advise(Advice::DontDump);
        if backing_file.pages == Pages::HugeMemfd {
            shown.advise(Advice::HugePage)?;
        }
        Ok(window)
    }

    /// The addresses of a chunk of the file.
    pub(super) fn chunk(&self, chunk: u32) -> OwnedRange {
        let start = self.range.start + chunk as usize * CHUNK_BYTES;
        self.range.part(VirtRange::new(start, CHUNK_BYTES))
    }

    /// Called when every chunk is in.
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

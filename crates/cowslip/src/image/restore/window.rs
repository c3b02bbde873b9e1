#![allow(unsafe_code)]
//! Addresses through which a thread fills chunks of the file behind an arena, and looks at them.
//!
//! # Safety
//! A [`Window`] owns its addresses, and hands them out only while they show what was asked for.

use cowslip_sys::Errno;
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use crate::arena::backing_file::{BackingFile, Pages};

/// Chunks that are shown before any of them is taken down, as that interrupts every thread.
const PLACES: usize = 8;

#[derive(Debug)]
pub(super) struct Window {
    range: VirtRange,
    /// Places in use.
    used: usize,
}

impl Window {
    pub(super) fn new() -> Result<Self, Errno> {
        memory::reserve(PLACES * CHUNK_BYTES, CHUNK_BYTES).map(|range| Self { range, used: 0 })
    }

    /// Shows `look` a chunk of the file behind an arena, which it may read and write.
    pub(super) fn show<T>(
        &mut self,
        backing_file: &BackingFile,
        offset_bytes: u64,
        look: impl FnOnce(VirtRange) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if self.used == PLACES {
            // SAFETY: see the module.
            unsafe { memory::map_anonymous(self.range, Prot::NONE) }?;
            self.used = 0;
        }
        let place = VirtRange::new(self.range.start + self.used * CHUNK_BYTES, CHUNK_BYTES);
        // SAFETY: see the module. A child, also one that nobody told of, has no business with it.
        unsafe {
            memory::map_file(place, backing_file.fd(), offset_bytes, Sharing::Shared, Prot::RW)?;
            memory::advise(place, Advice::DontFork)?;
            if backing_file.pages == Pages::HugeMemfd {
                memory::advise(place, Advice::HugePage)?;
            }
        }
        self.used += 1;
        look(place)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: see the module.
        let _ = unsafe { memory::unmap(self.range) };
    }
}

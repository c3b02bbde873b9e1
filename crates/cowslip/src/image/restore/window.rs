#![allow(unsafe_code)]
//! Addresses through which a thread looks at 2 MiB of a file, as long as it has to.
//!
//! # Safety
//! A [`Window`] owns its addresses, and hands them out only while they show what was asked for.

use crate::sys::memory::{self, Prot, Sharing};
use crate::sys::{BorrowedFd, Errno};
use crate::units::{CHUNK_BYTES, VirtRange};

#[derive(Debug)]
pub(super) struct Window(VirtRange);

impl Window {
    pub(super) fn new() -> Result<Self, Errno> {
        memory::reserve(CHUNK_BYTES, CHUNK_BYTES).map(Self)
    }

    /// Shows `look` a part of a file, which it may read. It stays mapped until the next: taking it down by itself
    /// would interrupt every thread once more.
    pub(super) fn show<T>(
        &mut self,
        file: BorrowedFd<'_>,
        offset_bytes: u64,
        look: impl FnOnce(VirtRange) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        // SAFETY: see the module.
        unsafe { memory::map_file(self.0, file, offset_bytes, Sharing::Private, Prot::READ) }?;
        look(self.0)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: see the module.
        let _ = unsafe { memory::unmap(self.0) };
    }
}

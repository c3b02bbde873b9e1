#![allow(unsafe_code)]
//! Typed memory of an arena.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;
use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::memory::Prot;
use cowslip_sys::units::{ByteCount, VirtRange, page_size_bytes};

use super::vma_map::Span;
use super::{Arena, Handle};

/// `n` values of `T` in an arena; given back when dropped.
///
/// A freeze does not move it, and references into it stay valid: the same addresses show the same
/// content before, during and after.
#[derive(Debug)]
pub struct ArenaSlice<T: Pod> {
    handle: Arc<Handle>,
    start: NonNull<T>,
    len: usize,
    range: VirtRange,
}

// SAFETY: it owns its memory as a Box<[T]> does.
unsafe impl<T: Pod + Send> Send for ArenaSlice<T> {}
// SAFETY: shared access gives &[T] only.
unsafe impl<T: Pod + Sync> Sync for ArenaSlice<T> {}

impl Arena {
    /// `len` zeroed values.
    ///
    /// # Errors
    /// See [`Arena::allocate`].
    pub fn slice<T: Pod>(&self, len: usize) -> Result<ArenaSlice<T>> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, "allocate a slice of an arena")
                .because("it is longer than the address space")
        })?;
        let range = self.allocate(ByteCount(bytes as u64), Prot::RW)?;
        let start = NonNull::new(range.start as *mut T).expect("an arena is not at address zero");
        Ok(ArenaSlice { handle: Arc::clone(&self.handle), start, len, range })
    }
}

impl Arena {
    /// The values at `range`, which is handed out already: found in a restored image, for instance.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a part of it is not handed out for reading and writing, or if it is not whole
    /// pages.
    ///
    /// # Safety
    /// No other slice or reference has this memory, and it is not released.
    pub unsafe fn adopt_slice<T: Pod>(&self, range: VirtRange) -> Result<ArenaSlice<T>> {
        const OPERATION: &str = "take memory of an arena as a slice";
        let usable: usize = {
            let state = self.shared().lock();
            let spans = state.vma_map.within(range.intersect(self.range()));
            let is_usable = |span: &Span| span.usage.is_used() && span.prot.contains(Prot::RW);
            spans.filter(is_usable).map(|span| span.range.len).sum()
        };
        if usable != range.len || range.inner_aligned(page_size_bytes()) != range {
            return Err(Error::new(ErrorKind::Usage, OPERATION).on(range).because(
                "it must be whole pages of the arena that are handed out, readable and writable",
            ));
        }
        let start = NonNull::new(range.start as *mut T).expect("an arena is not at address zero");
        let len = range.len / size_of::<T>().max(1);
        Ok(ArenaSlice { handle: Arc::clone(&self.handle), start, len, range })
    }
}

impl<T: Pod> ArenaSlice<T> {
    /// Its addresses, whole pages.
    pub fn range(&self) -> VirtRange {
        self.range
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }
}

impl<T: Pod> Deref for ArenaSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` values of T lie in the range this slice owns, page-aligned, initialised
        // (zeroes are a T, as it is Pod); the arena lives as long as the handle.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for ArenaSlice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> Drop for ArenaSlice<T> {
    fn drop(&mut self) {
        let shared = &self.handle.shared;
        // If the kernel refuses, the memory stays handed out: a leak, nothing worse.
        let _ = shared.release(&mut shared.lock_restored(self.range), self.range);
    }
}

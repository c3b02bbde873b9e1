#![allow(unsafe_code)]
//! Values in memory that Cowslip maps: of an arena, of a view, of a clone.
//!
//! # Safety
//! Values are [`Pod`], so that any bytes are valid.
//! * A slice of an arena owns its memory as a `Box` does. Freezes and thaws keep its content.
//! * A view maps the base of memory that was handed out, readable. Nothing writes the base while the view lives (I2).
//! * A clone owns its place, mapped as its layout says until it is dropped. Its copied and fresh regions are private, so
//!   Rust's rules for references hold for them as for a `Box`; the base behind them does not change (I2). Shared regions
//!   are accessed only through atomics.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytemuck::Pod;
use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::memory::Prot;
use cowslip_sys::units::{ByteCount, VirtRange, page_size_bytes, round_up};

use crate::arena::{Arena, Handle};
use crate::freeze::Frozen;
use crate::image::Root;
use crate::memory::vma_map::Span;
use crate::template::TemplateClone;

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
    /// The values in `range`, which is handed out already: found in a restored image, for instance. The place that
    /// [`ArenaSlice::root`] names and [`ArenaSlice::value_range`] give as many values as there were; whole pages give
    /// all that fit.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a part of its pages is not handed out for reading and writing, if it does not begin with
    /// a page, or if it is neither whole values nor whole pages.
    ///
    /// # Safety
    /// No other slice or reference has this memory, up to the end of its last page, and it is not released.
    pub unsafe fn adopt_slice<T: Pod>(&self, range: VirtRange) -> Result<ArenaSlice<T>> {
        const OPERATION: &str = "take memory of an arena as a slice";
        let (page, size) = (page_size_bytes(), size_of::<T>().max(1));
        let is_whole = range.len.is_multiple_of(page) || range.len.is_multiple_of(size);
        let pages = round_up(range.len, page).map(|len| VirtRange::new(range.start, len));
        let pages = pages.filter(|pages| is_whole && pages.start.is_multiple_of(page));
        let usable = |pages: VirtRange| {
            let state = self.shared().lock();
            let spans = state.vma_map.within(pages.intersect(self.range()));
            let is_usable = |span: &Span| span.usage.is_used() && span.prot.contains(Prot::RW);
            spans.filter(is_usable).map(|span| span.range.len).sum::<usize>() == pages.len
        };
        let Some(pages) = pages.filter(|&pages| usable(pages)) else {
            return Err(Error::new(ErrorKind::Usage, OPERATION).on(range).because(
                "it must be whole values, in pages of the arena that are handed out, readable and writable",
            ));
        };
        let start = NonNull::new(range.start as *mut T).expect("an arena is not at address zero");
        let (handle, len) = (Arc::clone(&self.handle), range.len / size);
        Ok(ArenaSlice { handle, start, len, range: pages })
    }
}

impl<T: Pod> ArenaSlice<T> {
    /// Its addresses, whole pages.
    pub fn range(&self) -> VirtRange {
        self.range
    }

    /// The addresses of its values, without the rest of the last page. [`Arena::adopt_slice`] makes a slice of the same
    /// length of them.
    pub fn value_range(&self) -> VirtRange {
        VirtRange::new(self.range.start, size_of_val::<[T]>(self))
    }

    /// Its place and its length, for [`SaveOptions::roots`](crate::image::SaveOptions::roots): `arena` is the index of
    /// its arena's view among those that are saved.
    pub fn root(&self, arena: u32) -> Root {
        let offset = self.range.start - self.handle.shared.range.start;
        let length_bytes = size_of_val::<[T]>(self) as u64;
        Root { arena, offset_bytes: offset as u64, length_bytes }
    }
}

impl<T: Pod> Deref for ArenaSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: see the module. `len` values lie in the range, page-aligned, and the arena lives as long as the handle.
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

/// Words of an arena that threads share.
pub(crate) struct ArenaWords(ArenaSlice<u64>);

impl ArenaSlice<u64> {
    pub(crate) fn into_words(self) -> ArenaWords {
        ArenaWords(self)
    }
}

impl ArenaWords {
    pub(crate) fn range(&self) -> VirtRange {
        self.0.range
    }
}

impl Deref for ArenaWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: see the module. The slice is in here, so that all access to it is atomic.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), self.0.len) }
    }
}

impl Frozen {
    /// The content of `slice` at the instant of the freeze.
    ///
    /// # Panics
    /// If `slice` is of another arena.
    pub fn slice<T: Pod>(&self, slice: &ArenaSlice<T>) -> &[T] {
        assert!(Arc::ptr_eq(&self.handle, &slice.handle), "a slice of another arena");
        &self.values(slice.range)[..slice.len]
    }

    /// The values that fill `range` of the arena, which is handed out now, or was when it was frozen.
    pub(crate) fn values<T: Pod>(&self, range: VirtRange) -> &[T] {
        let shown = self.shown(range);
        assert!(shown.start.is_multiple_of(align_of::<T>()));
        // SAFETY: see the module. Memory handed out after the freeze was free then: zeroes, or its last user's content.
        unsafe {
            std::slice::from_raw_parts(shown.start as *const T, range.len / size_of::<T>().max(1))
        }
    }
}

impl TemplateClone {
    /// The clone's content of `slice`.
    ///
    /// # Panics
    /// If `slice` belongs to another arena, did not exist at the freeze, or is in a shared region.
    pub fn slice<T: Pod>(&self, slice: &ArenaSlice<T>) -> &[T] {
        &self.values(self.range_of(slice))[..slice.len()]
    }

    /// Like [`Self::slice`], for writing: the first write to a page copies it.
    ///
    /// # Panics
    /// Like [`Self::slice`].
    pub fn slice_mut<T: Pod>(&mut self, slice: &ArenaSlice<T>) -> &mut [T] {
        let range = self.range_of(slice);
        &mut self.values_mut(range)[..slice.len()]
    }

    fn range_of<T: Pod>(&self, slice: &ArenaSlice<T>) -> VirtRange {
        let arena = slice.handle.shared.range;
        assert!(self.layout().origin() == arena.start, "a slice of another arena");
        slice.range()
    }

    /// The values that fill `range`, at the arena's addresses: for a process without an [`ArenaSlice`] of it. It must
    /// learn the layout from the template's maker.
    ///
    /// # Panics
    /// If a part of `range` is not in the template, not readable, or shared, or it is not aligned for `T`.
    pub fn values<T: Pod>(&self, range: VirtRange) -> &[T] {
        let len = self.layout().check::<T>(range, Prot::READ, false);
        // SAFETY: see the module. The layout has checked the range.
        unsafe { std::slice::from_raw_parts(self.address(range.start) as *const T, len) }
    }

    /// Like [`Self::values`], for writing.
    ///
    /// # Panics
    /// Like [`Self::values`], and if a part is not writable.
    pub fn values_mut<T: Pod>(&mut self, range: VirtRange) -> &mut [T] {
        let len = self.layout().check::<T>(range, Prot::RW, false);
        // SAFETY: see the module. The layout has checked the range, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.address(range.start) as *mut T, len) }
    }

    /// The words of a shared region, at the arena's addresses: other clones see the values stored there.
    ///
    /// # Panics
    /// If a part of `range` is not in a shared region that can be read and written.
    pub fn shared_words(&self, range: VirtRange) -> &[AtomicU64] {
        let len = self.layout().check::<u64>(range, Prot::RW, true);
        // SAFETY: see the module. The layout has checked the range.
        unsafe { std::slice::from_raw_parts(self.address(range.start) as *const AtomicU64, len) }
    }
}

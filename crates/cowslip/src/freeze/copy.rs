#![allow(unsafe_code)]
//! A view that ends while references into it live on: what they show becomes memory of its own.
//!
//! ```text
//!   view  ──MAP_SHARED──▶ file (base)        copy  ──MAP_PRIVATE──▶ its own pages, under the same addresses
//! ```
//!
//! # Safety
//! Each part is filled elsewhere and then moved over the view in one step (`mremap`), with the bytes that the view shows
//! there: a thread that reads it meanwhile sees the same before and after. Nobody writes to either.

use cowslip_sys::error::{During, Result};
use cowslip_sys::memory::{self, Prot};
use cowslip_sys::process;
use cowslip_sys::units::{VirtRange, page_size_bytes};

use super::Frozen;
use crate::{Error, ErrorKind};

const OPERATION: &str = "copy parts of a view";

/// Parts of a view that has ended, for reading, under the addresses that they had in it.
#[derive(Debug)]
pub struct FrozenCopy {
    parts: Vec<VirtRange>,
}

impl Frozen {
    /// Ends the view. What it shows of `parts`, at the arena's addresses, stays where it is, as a copy: for interpreters, whose
    /// programs hold on to what they took from a view. The arena may be frozen again at once.
    ///
    /// # Errors
    /// The view, which is as before, with the kernel's reason; [`ErrorKind::Busy`] in a child of the process that froze it.
    ///
    /// # Panics
    /// If a part is not of the arena.
    #[allow(clippy::result_large_err, reason = "the view goes back to the caller")]
    pub fn into_copy(mut self, parts: &[VirtRange]) -> Result<FrozenCopy, (Self, Error)> {
        if self.pid != process::pid() {
            let error = Error::new(ErrorKind::Busy, OPERATION);
            return Err((self, error.because("the view is of this process' parent")));
        }
        let parts = whole_pages(parts, self.handle.shared.unit());
        if let Err(error) = parts.iter().try_for_each(|part| self.copy_in_place(*part)) {
            return Err((self, error));
        }
        let shown = |part: &VirtRange| VirtRange::new(self.view_address(part.start), part.len);
        let parts: Vec<VirtRange> = parts.iter().map(shown).collect();
        let mut gap = self.view.start;
        for part in parts.iter().copied().chain([VirtRange::new(self.view.end(), 0)]) {
            if gap < part.start {
                // SAFETY: the view's own, and outside of what stays. If it fails the addresses stay taken.
                let _ = unsafe { memory::unmap(VirtRange::between(gap, part.start)) };
            }
            gap = part.end();
        }
        // Nothing is left of it that could be unmapped.
        self.view = VirtRange::default();
        Ok(FrozenCopy { parts })
    }

    /// Has the view show a copy of `part`, which is whole pages.
    fn copy_in_place(&self, part: VirtRange) -> Result<()> {
        let copy = memory::reserve_apart(part.len, page_size_bytes()).during(OPERATION)?;
        let there = VirtRange::new(self.view_address(part.start), part.len);
        let moved = self.fill(part, copy).and_then(|()| {
            // SAFETY: `copy` was made just now, and is one mapping; the view is this value's own, and see the module.
            unsafe {
                memory::protect(copy, Prot::READ).during(OPERATION)?;
                memory::move_mapping(copy, there).during(OPERATION)
            }
        });
        if moved.is_err() {
            // SAFETY: made above, and nobody knows it.
            let _ = unsafe { memory::unmap(copy) };
        }
        moved
    }

    /// Fills `copy`, which is reserved, with what the view shows of `part`.
    fn fill(&self, part: VirtRange, copy: VirtRange) -> Result<()> {
        // SAFETY: the caller's own, and nobody else knows it.
        unsafe { memory::map_anonymous(copy, Prot::RW) }.during(OPERATION)?;
        // What was not in use at the freeze shows zeroes.
        for piece in &self.layout {
            let piece = piece.range.intersect(part);
            if piece.is_empty() {
                continue;
            }
            let start = copy.start + (piece.start - part.start);
            // SAFETY: zeroes that were mapped just now, and nobody else knows them.
            let content = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, piece.len) };
            self.read_base(piece, content).during(OPERATION)?;
        }
        Ok(())
    }
}

/// The pages of so many bytes that `parts` touch: in order, apart. A mapping of the hugetlb pool is replaced by whole pages of
/// it only.
fn whole_pages(parts: &[VirtRange], page_bytes: usize) -> Vec<VirtRange> {
    let mut pages: Vec<VirtRange> =
        parts.iter().map(|part| part.outer_aligned(page_bytes)).collect();
    pages.sort_by_key(|part| part.start);
    let mut apart: Vec<VirtRange> = Vec::with_capacity(pages.len());
    for part in pages.into_iter().filter(|part| !part.is_empty()) {
        match apart.last_mut().filter(|last| part.start <= last.end()) {
            Some(last) => *last = VirtRange::between(last.start, last.end().max(part.end())),
            None => apart.push(part),
        }
    }
    apart
}

impl Drop for FrozenCopy {
    fn drop(&mut self) {
        for part in &self.parts {
            // SAFETY: this value's own; who took a reference to it keeps it.
            let _ = unsafe { memory::unmap(*part) };
        }
    }
}

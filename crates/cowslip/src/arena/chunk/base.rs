#![allow(unsafe_code)]
//! The base of a chunk, copied to the file that the chunk moves to.
//!
//! # Safety
//! The base has readers, so that nothing writes it. The place that it is copied to has none: no chunk maps it.

use cowslip_sys::units::CHUNK_BYTES;
use cowslip_sys::{Errno, memfile};

use crate::arena::backing_file::{BackingFile, Pages, copy_data, offset, take_huge_page};
use crate::arena::state::{Chunk, Shared, State};
use crate::service::Window;

/// Has `target` hold what the base of a chunk holds. Holes stay holes. No thread waits for it.
pub(crate) fn fill(
    shared: &Shared,
    state: &State,
    chunk: usize,
    target: &BackingFile,
    window: &Window,
) -> Result<(), Errno> {
    let range = shared.chunk_range(chunk, 1);
    let (start, end) =
        (offset(shared.range, range), offset(shared.range, range) + range.len as u64);
    if memfile::data_at_or_after(target.fd(), start, end)?.is_some() {
        memfile::punch_hole(target.fd(), start, range.len as u64)?;
    }
    let is_empty = state.vma_map.is_unused(range) || state.chunk(chunk) == Chunk::Anonymous;
    if is_empty {
        return Ok(());
    }
    let base = state.file_at(range.start);
    base.check_identity()?;
    let is_small = state.vma_map.is_base(range.start);
    let Some(first) = memfile::data_at_or_after(base.fd(), start, end)? else { return Ok(()) };
    if is_small {
        window.take_base_page(target.fd(), first)?;
    } else if target.pages == Pages::HugeMemfd {
        take_huge_page(target, shared.range, range)?;
    }
    window.with_base(base.fd(), start, CHUNK_BYTES, |shown| {
        // SAFETY: the window shows the base there, and see the module.
        unsafe { copy_data(base, target, start, shown) }
    })
}

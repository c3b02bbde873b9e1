#![allow(unsafe_code)]
//! The base of a chunk, copied to the file that the chunk moves to: from one mapping into another where one huge page holds
//! the copy, else by `write(2)`, which takes twice as long.
//!
//! # Safety
//! The base has readers, so that nothing writes it. The place that it is copied to has none: no chunk maps it.

use cowslip_sys::memory::{self, Advice};
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{Errno, memfile};

use super::stream;
use crate::arena::backing_file::{BackingFile, copy_data, offset};
use crate::arena::state::{Chunk, Shared, State};
use crate::service::Window;

/// Has `target` hold what the base of a chunk holds. Holes stay holes. No thread waits for it.
pub(crate) fn fill(
    shared: &Shared,
    state: &State,
    chunk: usize,
    target: &BackingFile,
    window: &Window,
    scanner: &Scanner<ReservedFd>,
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
    let mut place = None;
    if is_small {
        window.take_base_page(target.fd(), first)?;
    } else if target.pages.is_huge() {
        place = window.show(target.fd(), false, shared.range, range, scanner).ok();
    }
    window.with_base(base.fd(), start, CHUNK_BYTES, |shown| {
        // SAFETY: the window shows the base there and the target at `place`, and see the module.
        unsafe {
            match place {
                Some(place) => stream_data(base, start, shown, place),
                None => copy_data(base, target, start, shown),
            }
        }
    })
}

/// Copies what `from` holds from an offset on to `place`. What is a hole there is left out.
///
/// # Safety
/// `shown` maps that part of `from`, and nothing writes it. `place`, as long, is mapped by huge pages, and nothing uses it.
unsafe fn stream_data(
    from: &BackingFile,
    start: u64,
    shown: VirtRange,
    place: VirtRange,
) -> Result<(), Errno> {
    let (mut at, end) = (start, start + shown.len as u64);
    while let Some((first, last)) = memfile::next_data(from.fd(), at, end)? {
        let (after, len) = ((first - start) as usize, (last - first) as usize);
        let part = VirtRange::new(shown.start + after, len);
        // SAFETY: as the caller promised; the advice changes no content. Data begins and ends with a page.
        unsafe {
            let _ = memory::advise(part, Advice::PopulateRead);
            stream::copy(part, VirtRange::new(place.start + after, len), None);
        }
        at = last;
    }
    stream::finish();
    Ok(())
}

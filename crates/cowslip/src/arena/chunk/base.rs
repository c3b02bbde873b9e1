//! Copies the base of a chunk to the file that the chunk moves to: from one mapping into another where one huge page
//! holds the copy, else by `write(2)`, which takes twice as long.
//!
//! Slow steps come before threads are kept from the chunk: room for the copy's page, and reads from swap.
//!
//! No thread writes a base that has readers; the base of live memory is copied while threads are kept from it. The
//! copy's place has no readers: no chunk maps it.

use std::sync::Arc;

use cowslip_sys::memory::Advice;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{Errno, memfile, streaming};

use crate::arena::state::{Chunk, Shared, State};
use crate::mapping::OwnedRange;
use crate::mapping::backing_file::{BackingFile, copy_data, offset};
use crate::service::Window;

/// A base that is about to be copied, mapped until this is dropped.
pub(super) struct Base<'a> {
    window: &'a Window,
    file: Arc<BackingFile>,
    /// Its offset, in either file.
    start: u64,
    shown: OwnedRange,
    /// The copy's place, if a huge page was available.
    place: Option<OwnedRange>,
}

impl<'a> Base<'a> {
    /// Makes room in `target` for the base of a chunk, and maps the base; `None` if there is nothing to copy.
    pub(super) fn prepare(
        shared: &Shared,
        state: &State,
        chunk: usize,
        target: &BackingFile,
        window: &'a Window,
        scanner: &Scanner<ReservedFd>,
    ) -> Result<Option<Self>, Errno> {
        let range = shared.chunk_range(chunk, 1);
        let start = offset(shared.range, range);
        let end = start + range.len as u64;
        if memfile::data_at_or_after(target.fd(), start, end)?.is_some() {
            memfile::punch_hole(target.fd(), start, range.len as u64)?;
        }
        if state.vma_map.is_unused(range) || state.chunk(chunk) == Chunk::Anonymous {
            return Ok(None);
        }
        let file = Arc::clone(state.file_at(range.start));
        file.check_identity()?;
        let first = memfile::data_at_or_after(file.fd(), start, end)?;
        let mut place = None;
        match first {
            Some(first) if state.vma_map.is_base(range.start) => {
                window.take_base_page(target.fd(), first)?;
            }
            Some(_) if target.pages.is_huge() => {
                place = window.show(target, shared.range, range, scanner).ok();
            }
            // Live memory may be touched until threads are kept from it.
            None if state.chunk(chunk) != Chunk::Live => return Ok(None),
            _ => {}
        }
        let shown = window.open_base(file.fd(), start, CHUNK_BYTES)?;
        Ok(Some(Self { window, file, start, shown, place }))
    }

    /// Reads in the parts that are in swap, so that the copy need not wait for them.
    pub(super) fn read_in(&self) -> Result<(), Errno> {
        if self.place.is_some() { self.each_part(|_, _| Ok(())) } else { Ok(()) }
    }

    /// Copies the base to its place in `target`.
    pub(super) fn copy_to(&self, target: &BackingFile) -> Result<(), Errno> {
        let Some(place) = self.place else {
            return copy_data(&self.file, target, self.start, self.shown);
        };
        self.each_part(|part, after| {
            // The part is in memory, and one huge page maps its place in the target. Data begins and ends with a page.
            let to = VirtRange::new(place.start + after, part.len);
            part.stream_to(place.part(to), None);
            Ok(())
        })?;
        streaming::finish();
        Ok(())
    }

    /// Calls `act` with each part of the base that is not a hole, once it is in memory, and with its offset in the
    /// chunk.
    fn each_part(
        &self,
        mut act: impl FnMut(OwnedRange, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (mut at, end) = (self.start, self.start + self.shown.len as u64);
        while let Some((first, last)) = memfile::next_data(self.file.fd(), at, end)? {
            let after = (first - self.start) as usize;
            let part = VirtRange::new(self.shown.start + after, (last - first) as usize);
            let part = self.shown.part(part);
            // A load from a page that cannot be read in would be a SIGBUS.
            part.advise(Advice::PopulateRead)?;
            act(part, after)?;
            at = last;
        }
        Ok(())
    }
}

impl Drop for Base<'_> {
    fn drop(&mut self) {
        self.window.close_base();
    }
}

/// Copies the base of a chunk to its place in `target`.
pub(crate) fn fill(
    shared: &Shared,
    state: &State,
    chunk: usize,
    target: &BackingFile,
    window: &Window,
    scanner: &Scanner<ReservedFd>,
) -> Result<(), Errno> {
    let base = Base::prepare(shared, state, chunk, target, window, scanner)?;
    base.map_or(Ok(()), |base| base.copy_to(target))
}

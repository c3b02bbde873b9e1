#![allow(unsafe_code)]
//! How private pages get into the file.
//!
//! A few with `pwrite(2)`. Many through a *window*: the file's chunk, mapped for as long as they are
//! copied, which saves half a microsecond a page. Only a chunk that one huge page holds is copied
//! through the window: it is mapped as a whole or not at all, so that no store into it can fault (and
//! a file without room for it is an errno, not a SIGBUS).
//!
//! # Safety
//! The runs are mapped parts of an arena whose writers are held off (see [`super::chunk`]), so that
//! they do not change while they are read.

use super::stream;
use crate::arena::store::{Pages, Store, offset};
use crate::sys::held::HeldFd;
use crate::sys::memory::{self, Advice, Prot, Sharing};
use crate::sys::pagemap::Scanner;
use crate::sys::{Errno, memfile};
use crate::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

/// Runs that `pwrite` copies sooner than a window is opened and closed.
const FEW_RUNS: usize = 8;

/// Address space for one chunk of the file.
#[derive(Debug)]
pub(in crate::freeze) struct Window {
    place: VirtRange,
}

impl Window {
    /// Sets the address space aside.
    pub(in crate::freeze) fn reserve() -> Result<Self, Errno> {
        memory::reserve(CHUNK_BYTES, CHUNK_BYTES).map(|place| Self { place })
    }

    /// Shows `chunk` of the arena's file, if it can be done at once and for all of it.
    fn open(
        &self,
        store: &Store,
        arena: VirtRange,
        chunk: VirtRange,
        scanner: &Scanner<HeldFd>,
    ) -> Result<Open<'_>, Errno> {
        // SAFETY: the place is this window's own.
        unsafe {
            let at = offset(arena, chunk);
            memory::map_file(self.place, store.fd(), at, Sharing::Shared, Prot::RW)?;
            let open = Open { window: self, chunk };
            let first = VirtRange::new(self.place.start, page_size_bytes());
            memory::advise(first, Advice::PopulateWrite)?;
            if store.pages == Pages::Hugetlb || scanner.is_huge(self.place)? {
                Ok(open)
            } else {
                Err(Errno::NOTSUP)
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the place is this window's own, and no `Open` borrows it any more.
        let _ = unsafe { memory::unmap(self.place) };
    }
}

/// A window that shows a chunk.
struct Open<'a> {
    window: &'a Window,
    chunk: VirtRange,
}

impl Open<'_> {
    /// Copies a run of pages; the one after it begins at `next`.
    fn copy(&self, run: VirtRange, next: Option<usize>) {
        debug_assert!(self.chunk.covers(run));
        let to = VirtRange::new(self.window.place.start + (run.start - self.chunk.start), run.len);
        // SAFETY: the run is mapped and held from writers (see the module). The window maps the same
        // part of the file, by one huge page that is there. Only the file's pages are written, and
        // nobody has another mapping of them: the arena maps them privately.
        unsafe { stream::copy(run, to, next) };
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        stream::finish();
        // A second mapping would count as memory of the program. If it stays, the next one replaces it.
        // SAFETY: the place is this window's own.
        let _ = unsafe { memory::map_anonymous(self.window.place, Prot::NONE) };
    }
}

/// Copies `runs` of private pages, in one chunk, into the file: how many pages they are.
pub(super) fn copy_out(
    store: &Store,
    arena: VirtRange,
    runs: &[(VirtRange, Prot)],
    window: &Window,
    scanner: &Scanner<HeldFd>,
) -> Result<u64, Errno> {
    let Some((first, _)) = runs.first() else { return Ok(0) };
    for (run, prot) in runs {
        if !prot.contains(Prot::READ) {
            // Guarded memory may hold content too. Nobody can write it, and it is mapped anew,
            // guarded, as soon as it is copied.
            // SAFETY: see the module.
            unsafe { memory::protect(*run, Prot::READ) }?;
        }
    }
    let chunk = VirtRange::new(first.start & !(CHUNK_BYTES - 1), CHUNK_BYTES);
    let must = store.pages == Pages::Hugetlb;
    let open = if must || (store.pages.is_huge() && runs.len() > FEW_RUNS) {
        match window.open(store, arena, chunk, scanner) {
            Ok(open) => Some(open),
            // hugetlbfs has no write(2).
            Err(errno) if must => return Err(errno),
            Err(_) => None,
        }
    } else {
        None
    };
    let mut pages = 0;
    for (i, (run, _)) in runs.iter().enumerate() {
        match &open {
            Some(open) => open.copy(*run, runs.get(i + 1).map(|(next, _)| next.start)),
            // SAFETY: see the module.
            None => unsafe { memfile::write_range_at(store.fd(), *run, offset(arena, *run)) }?,
        }
        pages += (run.len / page_size_bytes()) as u64;
    }
    Ok(pages)
}

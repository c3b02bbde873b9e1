//! Parts of an arena's files, mapped while the arena is locked, so that a thaw or a move can copy from one into another.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{AsRawFd, BorrowedFd, Errno};

use crate::mapping::backing_file::{BackingFile, Pages, offset};
use crate::mapping::{OwnSpace, OwnedRange};
use crate::plan::settings::thaw::WINDOW_BYTES;

const NOTHING: usize = 0;

/// Address space for a part of a file, and behind it for a chunk of another. Used by the thread that has the arena's
/// lock, and closed before that is released: a second mapping counts as memory of the program, and a fork would share
/// it.
#[derive(Debug)]
pub(crate) struct Window {
    place: OwnSpace,
    /// The start of the part of the arena that it shows, or [`NOTHING`].
    shown: AtomicUsize,
    /// The number of the file's descriptor.
    file: AtomicI32,
}

impl Window {
    /// Sets the address space aside.
    pub(crate) fn reserve() -> Result<Self, Errno> {
        let place = OwnSpace::reserve_apart(WINDOW_BYTES + CHUNK_BYTES, CHUNK_BYTES)?;
        Ok(Self { place, shown: AtomicUsize::new(NOTHING), file: AtomicI32::new(0) })
    }

    /// Shows `chunk` of the arena's file, if that can be done at once and for all of it: by one huge page, as hugetlbfs
    /// does for certain. If the file has nothing there, the page is allocated.
    pub(crate) fn show(
        &self,
        file: &BackingFile,
        arena: VirtRange,
        chunk: VirtRange,
        scanner: &Scanner<ReservedFd>,
    ) -> Result<OwnedRange, Errno> {
        let start = chunk.start - (chunk.start - arena.start) % WINDOW_BYTES;
        let number = file.fd().as_raw_fd();
        if self.shown.load(Relaxed) != start || self.file.load(Relaxed) != number {
            self.close();
            let part = VirtRange::new(start, WINDOW_BYTES).intersect(arena);
            let place = self.place.first(part.len);
            place.map_file(file.fd(), offset(arena, part), Sharing::Shared, Prot::RW)?;
            if file.pages == Pages::HugeMemfd {
                // Best effort: without it there is a huge page where there was one before.
                let _ = place.advise(Advice::HugePage);
            }
            self.shown.store(start, Relaxed);
            self.file.store(number, Relaxed);
        }
        let place = self.part(chunk.start - start, CHUNK_BYTES);
        place.first(page_size_bytes()).advise(Advice::PopulateWrite)?;
        if file.pages == Pages::Hugetlb || scanner.is_huge(*place)? {
            Ok(place)
        } else {
            Err(Errno::NOTSUP)
        }
    }

    /// Maps a part of a file, of at most a chunk, for reading, until [`Self::close_base`]. The part for writing stays.
    pub(crate) fn open_base(
        &self,
        file: BorrowedFd<'_>,
        at: u64,
        len: usize,
    ) -> Result<OwnedRange, Errno> {
        let place = self.part(WINDOW_BYTES, len);
        place.map_file(file, at, Sharing::Shared, Prot::READ)?;
        Ok(place)
    }

    fn part(&self, after: usize, len: usize) -> OwnedRange {
        self.place.part(VirtRange::new(self.place.start + after, len))
    }

    /// Unmaps the base.
    pub(crate) fn close_base(&self) {
        // On an error the mapping stays, and the next base replaces it.
        let _ = self.part(WINDOW_BYTES, CHUNK_BYTES).map_anonymous(Prot::NONE);
    }

    /// Allocates the page at an offset of the file, where nothing is around it, as a base page.
    pub(crate) fn take_base_page(&self, file: BorrowedFd<'_>, at: u64) -> Result<(), Errno> {
        self.close();
        let page = self.place.first(page_size_bytes());
        page.map_file(file, at, Sharing::Shared, Prot::RW)?;
        let taken =
            page.advise(Advice::NoHugePage).and_then(|()| page.advise(Advice::PopulateWrite));
        page.map_anonymous(Prot::NONE)?;
        taken
    }

    /// Unmaps all that it shows.
    pub(crate) fn close(&self) {
        if self.shown.swap(NOTHING, Relaxed) != NOTHING {
            // If the mapping stays, the next part replaces it.
            let _ = self.place.map_anonymous(Prot::NONE);
        }
    }
}

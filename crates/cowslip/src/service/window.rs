#![allow(unsafe_code)]
//! Parts of an arena's files, mapped while the arena is locked, so that a thaw or a move can copy from one into another.
//!
//! # Safety
//! The place is the window's own, and nobody keeps an address in it.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{AsRawFd, BorrowedFd, Errno};

use crate::arena::backing_file::{BackingFile, Pages};

/// What is thawed while the arena is locked once lies in one window, mostly.
const WINDOW_BYTES: usize = 8 * CHUNK_BYTES;
const NOTHING: usize = 0;

/// Address space for a part of a file, and behind it for a chunk of another. Used by who has the arena's lock, and closed before it is
/// given up: a second mapping counts as memory of the program, and a fork would share it.
#[derive(Debug)]
pub(crate) struct Window {
    place: VirtRange,
    /// Where the part of the arena begins that it shows, or [`NOTHING`].
    shown: AtomicUsize,
    /// The number of the file's descriptor.
    file: AtomicI32,
}

impl Window {
    /// Sets the address space aside.
    pub(crate) fn reserve() -> Result<Self, Errno> {
        let place = memory::reserve_apart(WINDOW_BYTES + CHUNK_BYTES, CHUNK_BYTES)?;
        Ok(Self { place, shown: AtomicUsize::new(NOTHING), file: AtomicI32::new(0) })
    }

    /// Where it shows `chunk` of the arena's file, if it can be shown at once and all of it: by one huge page, as hugetlbfs
    /// does for certain. If the file has nothing there, the page is allocated.
    pub(crate) fn show(
        &self,
        file: &BackingFile,
        arena: VirtRange,
        chunk: VirtRange,
        scanner: &Scanner<ReservedFd>,
    ) -> Result<VirtRange, Errno> {
        let start = chunk.start - (chunk.start - arena.start) % WINDOW_BYTES;
        let number = file.fd().as_raw_fd();
        if self.shown.load(Relaxed) != start || self.file.load(Relaxed) != number {
            self.close();
            let part = VirtRange::new(start, WINDOW_BYTES).intersect(arena);
            let place = VirtRange::new(self.place.start, part.len);
            // SAFETY: the place is this window's own.
            unsafe {
                let at = (part.start - arena.start) as u64;
                memory::map_file(place, file.fd(), at, Sharing::Shared, Prot::RW)?;
                if file.pages == Pages::HugeMemfd {
                    // Best effort: without it there is a huge page where there was one before.
                    let _ = memory::advise(place, Advice::HugePage);
                }
            }
            self.shown.store(start, Relaxed);
            self.file.store(number, Relaxed);
        }
        let place = VirtRange::new(self.place.start + (chunk.start - start), CHUNK_BYTES);
        let first = VirtRange::new(place.start, page_size_bytes());
        // SAFETY: as above.
        unsafe { memory::advise(first, Advice::PopulateWrite) }?;
        if file.pages == Pages::Hugetlb || scanner.is_huge(place)? {
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
    ) -> Result<VirtRange, Errno> {
        let place = VirtRange::new(self.place.start + WINDOW_BYTES, len);
        // SAFETY: the place is this window's own.
        unsafe { memory::map_file(place, file, at, Sharing::Shared, Prot::READ) }?;
        Ok(place)
    }

    /// Shows no base any more.
    pub(crate) fn close_base(&self) {
        let place = VirtRange::new(self.place.start + WINDOW_BYTES, CHUNK_BYTES);
        // On an error the mapping stays, and the next base replaces it.
        // SAFETY: the place is this window's own.
        let _ = unsafe { memory::map_anonymous(place, Prot::NONE) };
    }

    /// Allocates the page at an offset of the file, where nothing is around it, as a base page.
    pub(crate) fn take_base_page(&self, file: BorrowedFd<'_>, at: u64) -> Result<(), Errno> {
        self.close();
        let page = VirtRange::new(self.place.start, page_size_bytes());
        // SAFETY: the place is this window's own.
        unsafe {
            memory::map_file(page, file, at, Sharing::Shared, Prot::RW)?;
            let taken = memory::advise(page, Advice::NoHugePage)
                .and_then(|()| memory::advise(page, Advice::PopulateWrite));
            memory::map_anonymous(page, Prot::NONE)?;
            taken
        }
    }

    /// Shows nothing any more.
    pub(crate) fn close(&self) {
        if self.shown.swap(NOTHING, Relaxed) != NOTHING {
            // If what is there stays, the next part replaces it.
            // SAFETY: the place is this window's own.
            let _ = unsafe { memory::map_anonymous(self.place, Prot::NONE) };
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the place is this window's own.
        let _ = unsafe { memory::unmap(self.place) };
    }
}

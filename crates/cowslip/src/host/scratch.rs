//! Memory for probes to experiment on.
//!
//! A [`Scratch`] lends its addresses only as atomics, which show the memory currently mapped there. A change of the
//! mapping can therefore surprise only the probe.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{BorrowedFd, Errno, memfile};

use crate::mapping::{OwnSpace, OwnedRange};

/// Addresses of a probe, aligned to 2 MiB, between guards that keep the kernel from joining them to
/// a neighbour.
#[derive(Debug)]
pub(super) struct Scratch {
    range: OwnedRange,
    with_guards: OwnSpace,
}

impl Scratch {
    /// `chunks` times 2 MiB, with nothing mapped yet.
    pub(super) fn reserve(chunks: usize) -> Result<Self, Errno> {
        let with_guards = OwnSpace::reserve((chunks + 2) * CHUNK_BYTES, CHUNK_BYTES)?;
        let range = VirtRange::new(with_guards.start + CHUNK_BYTES, chunks * CHUNK_BYTES);
        let range = with_guards.part(range);
        Ok(Self { range, with_guards })
    }

    /// One chunk of `file`, readable and writable.
    pub(super) fn of_file(file: BorrowedFd<'_>, sharing: Sharing) -> Result<Self, Errno> {
        let place = Self::reserve(1)?;
        place.map_file(file, sharing, Prot::RW)?;
        Ok(place)
    }

    /// One chunk of zeroed private memory.
    pub(super) fn anonymous() -> Result<Self, Errno> {
        let place = Self::reserve(1)?;
        place.range.map_anonymous(Prot::RW)?;
        Ok(place)
    }

    pub(super) fn range(&self) -> VirtRange {
        *self.range
    }

    pub(super) fn map_file(
        &self,
        file: BorrowedFd<'_>,
        sharing: Sharing,
        prot: Prot,
    ) -> Result<(), Errno> {
        self.range.map_file(file, 0, sharing, prot)
    }

    pub(super) fn advise(&self, advice: Advice) -> Result<(), Errno> {
        self.range.advise(advice)
    }

    /// Moves the pages to `to`, of the same length.
    pub(super) fn move_pages_to(&self, to: &Self) -> Result<(), Errno> {
        self.range.move_pages_to(to.range)
    }

    /// The first word of a page. The memory there must be mapped readable and writable.
    pub(super) fn page(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.pages());
        self.with_guards.word(CHUNK_BYTES + index * page_size_bytes())
    }

    pub(super) fn pages(&self) -> usize {
        self.range.len / page_size_bytes()
    }

    /// Writes to every page.
    pub(super) fn touch(&self) {
        for index in 0..self.pages() {
            self.page(index).store(1, Relaxed);
        }
    }

    /// Has the kernel write the first word of `file` to the first word of a page.
    pub(super) fn read_into_page(&self, index: usize, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let start = self.range.start + index * page_size_bytes();
        let word = self.range.part(VirtRange::new(start, size_of::<u64>()));
        word.with_bytes(|word| memfile::read_at(file, word, 0)).map(drop)
    }
}

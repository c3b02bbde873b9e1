#![allow(unsafe_code)]
//! Memory that probes try things on.
//!
//! # Safety
//! A [`Scratch`] owns its addresses from reservation to drop and lends nothing of them but atomics,
//! which show whatever is mapped there. What is done to it can therefore surprise only the probe.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{BorrowedFd, Errno, memfile};

/// Addresses of a probe, aligned to 2 MiB, between guards that keep the kernel from joining them to
/// a neighbour.
#[derive(Debug)]
pub(super) struct Scratch {
    range: VirtRange,
    with_guards: VirtRange,
}

impl Scratch {
    /// `chunks` times 2 MiB, of which nothing is mapped yet.
    pub(super) fn reserve(chunks: usize) -> Result<Self, Errno> {
        let with_guards = memory::reserve((chunks + 2) * CHUNK_BYTES, CHUNK_BYTES)?;
        let range = VirtRange::new(with_guards.start + CHUNK_BYTES, chunks * CHUNK_BYTES);
        Ok(Self { range, with_guards })
    }

    /// One chunk of `file`, readable and writable.
    pub(super) fn of_file(file: BorrowedFd<'_>, sharing: Sharing) -> Result<Self, Errno> {
        let it = Self::reserve(1)?;
        it.map_file(file, sharing, Prot::RW)?;
        Ok(it)
    }

    /// One chunk of zeroed private memory.
    pub(super) fn anonymous() -> Result<Self, Errno> {
        let it = Self::reserve(1)?;
        // SAFETY: see the module.
        unsafe { memory::map_anonymous(it.range, Prot::RW) }?;
        Ok(it)
    }

    pub(super) fn range(&self) -> VirtRange {
        self.range
    }

    pub(super) fn map_file(
        &self,
        file: BorrowedFd<'_>,
        sharing: Sharing,
        prot: Prot,
    ) -> Result<(), Errno> {
        // SAFETY: see the module.
        unsafe { memory::map_file(self.range, file, 0, sharing, prot) }
    }

    pub(super) fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: see the module.
        unsafe { memory::advise(self.range, advice) }
    }

    /// Moves the pages to `to`, of the same length.
    pub(super) fn move_pages_to(&self, to: &Self) -> Result<(), Errno> {
        assert_eq!(self.range.len, to.range.len);
        // SAFETY: see the module; the whole range was mapped in one call.
        unsafe { memory::move_pages_out(self.range, to.range) }
    }

    /// The first word of a page. The memory there was mapped readable and writable.
    pub(super) fn page(&self, index: usize) -> &AtomicU64 {
        let offset = index * page_size_bytes();
        assert!(offset < self.range.len);
        // SAFETY: the address is page-aligned and in the range, which stays reserved as long as the
        // borrow; every bit pattern is a u64, and all access to it is atomic or by the kernel.
        unsafe { AtomicU64::from_ptr((self.range.start + offset) as *mut u64) }
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
        let word = self.page(index).as_ptr().cast::<u8>();
        // SAFETY: eight bytes of scratch memory, which this thread alone uses until the call returns.
        let word = unsafe { std::slice::from_raw_parts_mut(word, size_of::<u64>()) };
        memfile::read_at(file, word, 0).map(|_| ())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the addresses are this value's own and what was lent of them has ended.
        let _ = unsafe { memory::unmap(self.with_guards) };
    }
}

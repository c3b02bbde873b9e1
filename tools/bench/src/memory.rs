#![allow(unsafe_code)]
//! Memory to snapshot, of each kind.
//!
//! It is read and written through [`AtomicU64`]s, so that several threads and a frozen view may look
//! at it at once. Children do not get it unless it is [offered](Memory::offer_to_children): another mechanism's
//! fork must not pay for the memory of the others.
//!
//! # Safety
//! A [`Memory`] owns its range, which is mapped readable and writable until it is dropped. The
//! advice given here changes no content.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cowslip::Arena;
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::{AsFd, OwnedFd};

use super::error::{Result, during};
use super::interrupt::Interrupt;
use super::smaps;

const COLLAPSE_TRIES: u32 = 20;

/// Pages of anonymous memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Anonymous {
    /// Chosen by the system's settings
    Any,
    /// `MADV_NOHUGEPAGE`
    Base,
    /// `MADV_HUGEPAGE`
    Huge,
}

/// A range of memory, aligned to 2 MiB.
#[derive(Debug)]
pub(crate) struct Memory {
    range: VirtRange,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// Mapped here, unmapped with this value.
    Mapping { file: Option<OwnedFd> },
    /// Part of an arena, which keeps it.
    Arena { _arena: Arena },
}

impl Memory {
    pub(crate) fn anonymous(bytes: usize, pages: Anonymous) -> Result<Self> {
        let range = memory::reserve(bytes, CHUNK_BYTES).map_err(during("reserve memory"))?;
        let memory = Self { range, owner: Owner::Mapping { file: None } };
        let advice = match pages {
            Anonymous::Any => None,
            Anonymous::Base => Some(Advice::NoHugePage),
            Anonymous::Huge => Some(Advice::HugePage),
        };
        // SAFETY: the range was just reserved for this value.
        unsafe { memory::map_anonymous(range, Prot::RW) }.map_err(during("map memory"))?;
        advice.map_or(Ok(()), |advice| memory.advise(advice))?;
        memory.offer_to_children(false)?;
        Ok(memory)
    }

    /// Its bytes; the exclusive borrow rules out access to its words.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped readable and writable as long as `self`, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.range.start as *mut u8, self.range.len) }
    }

    /// Its words, while no thread writes to them.
    pub(crate) fn words(&self) -> &[u64] {
        let (start, len) = (self.range.start as *const u64, self.range.len / size_of::<u64>());
        // SAFETY: mapped as long as `self`, aligned, and a writer borrows it exclusively or uses atomics.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        let (start, len) = (self.range.start as *mut u64, self.range.len / size_of::<u64>());
        // SAFETY: as in `bytes_mut`; aligned.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Drops the writes to a [private file](Self::private_file): it has the file's content again.
    pub(crate) fn drop_writes(&mut self) -> Result<()> {
        // SAFETY: the range is this value's, which is borrowed exclusively; bytes of a file are words too.
        unsafe { memory::advise(self.range, Advice::DontNeed) }.map_err(during("drop writes"))
    }

    /// `MAP_PRIVATE` memory of the hugetlb pool.
    pub(crate) fn hugetlb(bytes: usize) -> Result<Self> {
        let file = memfile::memfd("cowslip-bench", MemfdKind::Hugetlb2M, bytes as u64)
            .map_err(during("make a hugetlb file"))?;
        let range = memory::map_file_reserved(bytes, file.as_fd(), 0, Sharing::Private)
            .map_err(during("map hugetlb pages"))?;
        let memory = Self { range, owner: Owner::Mapping { file: Some(file) } };
        memory.offer_to_children(false)?;
        Ok(memory)
    }

    /// A memfd, mapped shared; children share it too.
    pub(crate) fn memfd(bytes: usize) -> Result<Self> {
        let file = memfile::memfd("cowslip-bench", MemfdKind::Shmem, bytes as u64)
            .map_err(during("make a memfd"))?;
        let range = memory::reserve(bytes, CHUNK_BYTES).map_err(during("reserve memory"))?;
        // SAFETY: the range was just reserved for this value.
        unsafe { memory::map_file(range, file.as_fd(), 0, Sharing::Shared, Prot::RW) }
            .map_err(during("map a memfd"))?;
        Ok(Self { range, owner: Owner::Mapping { file: Some(file) } })
    }

    /// Maps a file privately from its beginning.
    pub(crate) fn private_file(file: impl Into<OwnedFd>, bytes: usize) -> Result<Self> {
        let file = file.into();
        let range = memory::reserve(bytes, CHUNK_BYTES).map_err(during("reserve memory"))?;
        // SAFETY: the range was just reserved for this value.
        unsafe { memory::map_file(range, file.as_fd(), 0, Sharing::Private, Prot::RW) }
            .map_err(during("map a file"))?;
        Ok(Self { range, owner: Owner::Mapping { file: Some(file) } })
    }

    /// Maps the file's pages without a fault for each.
    pub(crate) fn populate(&self) -> Result<()> {
        memory::populate(self.range).map_err(during("madvise PopulateRead"))
    }

    /// In a child: makes its further writes to a [`memfd`](Self::memfd) its own.
    pub(crate) fn map_privately(&self) -> Result<()> {
        let Owner::Mapping { file: Some(file) } = &self.owner else { return Ok(()) };
        // SAFETY: the range is this value's, and shows the same bytes as before.
        unsafe { memory::map_file(self.range, file.as_fd(), 0, Sharing::Private, Prot::RW) }
            .map_err(during("map a memfd privately"))
    }

    pub(crate) fn in_arena(arena: &Arena, bytes: usize) -> Result<Self> {
        let range = arena.allocate(ByteCount(bytes as u64), Prot::RW)?;
        Ok(Self { range, owner: Owner::Arena { _arena: arena.clone() } })
    }

    pub(crate) fn range(&self) -> VirtRange {
        self.range
    }

    pub(crate) fn bytes(&self) -> usize {
        self.range.len
    }

    pub(crate) fn chunks(&self) -> usize {
        self.range.len / CHUNK_BYTES
    }

    pub(crate) fn pages(&self) -> usize {
        self.range.len / page_size_bytes()
    }

    /// The eight bytes at `offset_bytes`, a multiple of eight.
    pub(crate) fn word(&self, offset_bytes: usize) -> &AtomicU64 {
        assert!(offset_bytes < self.range.len && offset_bytes.is_multiple_of(8));
        // SAFETY: inside the range, which stays mapped as long as `self` and is accessed only through atomics; aligned,
        // since the range is.
        unsafe { &*((self.range.start + offset_bytes) as *const AtomicU64) }
    }

    /// The first word of page `page`.
    pub(crate) fn page(&self, page: usize) -> &AtomicU64 {
        self.word(page * page_size_bytes())
    }

    /// Writes a word of every page. (Adding zero would be optimised to a read.)
    pub(crate) fn touch(&self, stop: &Interrupt) -> Result<()> {
        for page in 0..self.pages() {
            if page.is_multiple_of(1 << 14) {
                stop.check()?;
            }
            self.page(page).fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Reads a word of every 2 MiB, which maps all that can be mapped huge.
    pub(crate) fn read_chunks(&self) {
        for chunk in 0..self.chunks() {
            std::hint::black_box(self.word(chunk * CHUNK_BYTES).load(Relaxed));
        }
    }

    /// Gives back all pages but one in `keep_one_in`.
    pub(crate) fn thin_out(&self, keep_one_in: usize) -> Result<()> {
        let page = page_size_bytes();
        let step = keep_one_in.max(1) * page;
        for kept in (self.range.start..self.range.end()).step_by(step) {
            let end = (kept + step).min(self.range.end());
            let rest = VirtRange::between((kept + page).min(end), end);
            // SAFETY: the range is this value's; atomic words that become zero are still words.
            unsafe { memory::advise(rest, Advice::DontNeed) }
                .map_err(during("give memory back"))?;
        }
        Ok(())
    }

    /// The share of it that huge entries of the page table map.
    pub(crate) fn huge_coverage(&self) -> Result<f64> {
        Ok(smaps::huge_mapped_bytes(self.range)? as f64 / self.range.len as f64)
    }

    /// `MADV_COLLAPSE`: huge pages again, now.
    pub(crate) fn collapse(&self) -> Result<()> {
        // madvise(2) documents `EAGAIN` as "Resource temporarily unavailable: try again".
        for _ in 0..COLLAPSE_TRIES {
            if self.advise(Advice::Collapse).is_ok() {
                return Ok(());
            }
        }
        self.advise(Advice::Collapse)
    }

    /// Sets whether a fork shares this memory with the child.
    pub(crate) fn offer_to_children(&self, offered: bool) -> Result<()> {
        self.advise(if offered { Advice::DoFork } else { Advice::DontFork })
    }

    /// Advice that drops no content.
    pub(crate) fn advise(&self, advice: Advice) -> Result<()> {
        // SAFETY: the range is this value's, and none of the advice above drops content.
        unsafe { memory::advise(self.range, advice) }
            .map_err(during(format_args!("madvise {advice:?}")))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Mapping { .. } = self.owner {
            // SAFETY: mapped by this value; references to its words do not outlive it.
            let _ = unsafe { memory::unmap(self.range) };
        }
    }
}

#![allow(unsafe_code)]
//! Finds the private copies among the pages of a private file mapping, the kinds of the other pages, and those of the
//! pages of any process ([`Scanner::kinds`]).
//!
//! `PAGEMAP_SCAN` (Linux 6.7) where the kernel has it, else the entries of `/proc/PID/pagemap`
//! (bits 63 present, 62 swapped, 61 file or shared). Both give the same answer.
//!
//! **A page that is not present may still be a private copy**: swapped out, or just being migrated by compaction. Both
//! look like a swap entry, and like the markers that write protection leaves for pages that were never there; only a
//! pagemap entry read with `CAP_SYS_ADMIN` tells them apart (by its swap type). The scanner learns how a marker looks
//! once, by making one; without that privilege it calls every such page private. Its content is then copied onto
//! itself: slower, but exact.
//!
//! # Safety
//! `PAGEMAP_SCAN` writes page regions to the vector that it is given, within its length.

use core::ffi::c_void;
use std::sync::OnceLock;

use bitflags::bitflags;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use crate::failpoints::{self, Op};
use crate::memfile::{self, MemfdKind};
use crate::memory::{self, Prot, Sharing};
use crate::reserved_fd::ReservedFd;
use crate::uffd::{self, Features, RegisterMode, Uffd};
use crate::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use crate::{AsFd, Errno, OwnedFd, Result};

const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
const IS_HUGE: u64 = 1 << 6;

const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE: u64 = 1 << 61;
const ENTRY_PROTECTED: u64 = 1 << 57;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;
const ENTRY_SWAP_TYPE: u64 = 0x1f;
const ENTRY_FRAME: u64 = (1 << 55) - 1;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

impl ScanArg {
    fn over(range: VirtRange, regions: &mut [Region]) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            start: range.start as u64,
            end: range.end() as u64,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            ..Self::default()
        }
    }
}

const _: () = assert!(size_of::<ScanArg>() == 96 && size_of::<Region>() == 24);

bitflags! {
    /// The kinds of a run of pages, all that apply; the bits are the kernel's categories.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct PageKinds: u64 {
        /// In memory.
        const PRESENT = IS_PRESENT;
        /// In swap, or being migrated.
        const SWAPPED = IS_SWAPPED;
        /// The zero page: read, but never written.
        const ZERO = IS_ZERO;
        /// Mapped by one entry of 2 MiB.
        const HUGE = IS_HUGE;
    }
}

/// The entry of a page in `/proc/PID/pagemap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(u64);

impl Entry {
    /// In memory.
    pub fn is_present(self) -> bool {
        self.0 & ENTRY_PRESENT != 0
    }

    /// In swap, being migrated, or marked by userfaultfd.
    pub fn is_swapped(self) -> bool {
        self.0 & ENTRY_SWAPPED != 0
    }

    /// Nothing is there, in memory or elsewhere.
    pub fn is_empty(self) -> bool {
        self.0 & (ENTRY_PRESENT | ENTRY_SWAPPED | ENTRY_PROTECTED) == 0
    }

    /// A page of a file or of shared memory, not a private copy.
    pub fn is_file(self) -> bool {
        self.0 & ENTRY_FILE != 0
    }

    /// Stores to it wait for userfaultfd. A file's page that is not in memory has a marker then (Linux 5.19).
    pub fn is_protected(self) -> bool {
        self.0 & ENTRY_PROTECTED != 0
    }

    /// In memory, not backed by a file, and not mapped by this process alone: shared with the other side of a fork, or
    /// the zero page.
    pub fn is_not_exclusive(self) -> bool {
        self.0 & (ENTRY_PRESENT | ENTRY_FILE | ENTRY_EXCLUSIVE) == ENTRY_PRESENT
    }

    /// The number of its page frame, for callers that may learn it (`CAP_SYS_ADMIN`).
    pub fn frame(self) -> Option<u64> {
        Some(self.0 & ENTRY_FRAME).filter(|&frame| self.is_present() && frame != 0)
    }
}

/// The way in which a [`Scanner`] looks at pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// The `PAGEMAP_SCAN` ioctl.
    Scan,
    /// Reading the entries of `/proc/PID/pagemap`.
    Entries,
}

/// Finds pages of a process by their kinds.
#[derive(Debug)]
pub struct Scanner<F: AsFd = OwnedFd> {
    pagemap: F,
    method: Method,
    marker: OnceLock<u64>,
}

/// Tries `PAGEMAP_SCAN` on this kernel: `Ok`, or `ENOTTY` before 6.7.
pub fn probe_scan(pagemap: crate::BorrowedFd<'_>) -> Result<()> {
    failpoints::check(Op::PagemapProbe)?;
    scan(pagemap, VirtRange::default(), 0, &mut []).map(|_| ())
}

impl Scanner<ReservedFd> {
    /// A scanner of this process' memory, for it [alone](ReservedFd::open).
    ///
    /// # Errors
    /// Those of opening `/proc/self/pagemap`.
    pub fn open() -> Result<Self> {
        ReservedFd::open(|| crate::procfs::open_self("pagemap")).map(Self::new)
    }
}

impl<F: AsFd> Scanner<F> {
    /// A scanner over `pagemap`, an open `/proc/PID/pagemap`: that of this very process, if it is
    /// to [learn markers](Self::learn_markers).
    pub fn new(pagemap: F) -> Self {
        let method = match probe_scan(pagemap.as_fd()) {
            Ok(()) => Method::Scan,
            Err(_) => Method::Entries,
        };
        Self { pagemap, method, marker: OnceLock::new() }
    }

    /// A scanner that reads entries even where `PAGEMAP_SCAN` works.
    pub fn with_entries(pagemap: F) -> Self {
        Self { pagemap, method: Method::Entries, marker: OnceLock::new() }
    }

    /// The descriptor.
    pub fn get_ref(&self) -> &F {
        &self.pagemap
    }

    /// The way in which it looks at pages.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Returns true if it can tell markers of write protection from swap and migration entries.
    pub fn knows_markers(&self) -> bool {
        self.marker.get().is_some()
    }

    /// Learns how a marker of write protection looks, by making one in a page of its own.
    pub fn learn_markers(&self) -> Result<()> {
        let page = page_size_bytes();
        let file =
            ReservedFd::open(|| memfile::memfd("cowslip-probe", MemfdKind::Shmem, page as u64))?;
        let range = memory::reserve_apart(page, page)?;
        let learnt = self.learn_markers_at(range, file.as_fd());
        // SAFETY: the range was reserved above for this probe alone.
        unsafe { memory::unmap(range) }?;
        if let Some(marker) = learnt? {
            let _ = self.marker.set(marker);
        }
        Ok(())
    }

    fn learn_markers_at(
        &self,
        range: VirtRange,
        file: crate::BorrowedFd<'_>,
    ) -> Result<Option<u64>> {
        // SAFETY: the range was reserved for this probe alone.
        unsafe { memory::map_file(range, file, 0, Sharing::Private, Prot::RW) }?;
        let fd = uffd::open_reserved()?;
        let uffd = Uffd::new(fd, Features::PAGEFAULT_FLAG_WP | Features::WP_HUGETLBFS_SHMEM)?;
        uffd.register(range, RegisterMode::WP)?;
        uffd.write_protect(range, true)?;
        let mut entry = [0u8; 8];
        self.read_entries(range, &mut entry)?;
        let entry = u64::from_ne_bytes(entry);
        // Without CAP_SYS_ADMIN the type and offset read as zero: nothing was learned.
        let kind = entry & ENTRY_SWAP_TYPE;
        Ok((entry & ENTRY_SWAPPED != 0 && kind != 0).then_some(kind))
    }

    /// Calls `found` for every run of private pages in `range` (whole pages), in order. Returns the
    /// number of these pages.
    pub fn private_runs(&self, range: VirtRange, mut found: impl FnMut(VirtRange)) -> Result<u64> {
        failpoints::check(Op::PagemapScan)?;
        let mut merged = Merger { run: VirtRange::default(), pages: 0, found: &mut found };
        match self.method {
            // A protected chunk has a marker in every gap, so its entries are needed anyway.
            Method::Scan if range.len > CHUNK_BYTES => self.scan_runs(range, &mut merged)?,
            _ => self.entry_runs(range, &mut merged)?,
        }
        Ok(merged.finish())
    }

    /// Counts the private pages of `range`, which must not be write-protected: up to `most` or a little over it.
    pub fn count_private(&self, range: VirtRange, most: u64) -> Result<u64> {
        failpoints::check(Op::PagemapScan)?;
        match self.method {
            Method::Scan => {
                let mut regions = [Region::default(); 128];
                let mut at = range;
                let mut pages = 0;
                while pages <= most && !at.is_empty() {
                    let (filled, walk_end) =
                        scan(self.pagemap.as_fd(), at, most + 1 - pages, &mut regions)?;
                    let bytes: u64 = regions[..filled].iter().map(|r| r.end - r.start).sum();
                    pages += bytes / page_size_bytes() as u64;
                    at = VirtRange::between(walk_end.max(at.start + 1), range.end());
                }
                Ok(pages)
            }
            Method::Entries => {
                let mut merged =
                    Merger { run: VirtRange::default(), pages: 0, found: &mut |_: VirtRange| {} };
                self.entry_runs(range, &mut merged)?;
                Ok(merged.finish())
            }
        }
    }

    /// The address of the first private page of `range`, which must not be write-protected. Where huge pages map all of
    /// it, one look at each of their entries is enough.
    pub fn first_private(&self, range: VirtRange) -> Result<Option<usize>> {
        failpoints::check(Op::PagemapScan)?;
        let mut at = range;
        while !at.is_empty() {
            let found = match self.method {
                Method::Scan => {
                    let mut regions = [Region::default()];
                    match scan(self.pagemap.as_fd(), at, 1, &mut regions)? {
                        (0, _) => return Ok(None),
                        _ if regions[0].categories & IS_PRESENT != 0 => {
                            return Ok(Some(regions[0].start as usize));
                        }
                        _ => VirtRange::new(regions[0].start as usize, page_size_bytes()),
                    }
                }
                Method::Entries => VirtRange::new(at.start, at.len.min(CHUNK_BYTES)),
            };
            let mut first = None;
            self.each_entry(found, |page, entry| {
                if first.is_none() && self.is_private(entry) {
                    first = Some(page.start);
                }
            })?;
            if first.is_some() {
                return Ok(first);
            }
            at = VirtRange::between(found.end(), range.end());
        }
        Ok(None)
    }

    /// Returns true if huge pages map all of `range`. `ENOTTY` where only entries can be read.
    pub fn is_huge(&self, range: VirtRange) -> Result<bool> {
        failpoints::check(Op::PagemapScan)?;
        let mut regions = [Region::default()];
        let arg = ScanArg { category_mask: IS_HUGE, ..ScanArg::over(range, &mut regions) };
        // SAFETY: the vector is `regions`, of the length in the argument.
        let (filled, _) = unsafe { rustix::ioctl::ioctl(&self.pagemap, Scan { arg }) }?;
        let [region] = regions;
        Ok(filled == 1 && (region.start, region.end) == (range.start as u64, range.end() as u64))
    }

    /// Calls `found` for every run of pages in `range` that is mapped, or swapped out, but not by a huge page. This
    /// touches no page itself, and is several times as fast as [`Self::private_runs`]: in a file of huge pages, a part
    /// that is not mapped by one was written. `ENOTTY` where only entries can be read.
    pub fn small_runs(&self, range: VirtRange, mut found: impl FnMut(VirtRange)) -> Result<()> {
        failpoints::check(Op::PagemapScan)?;
        if self.method == Method::Entries {
            return Err(Errno::NOTTY);
        }
        let not_huge = ScanArg {
            category_inverted: IS_HUGE,
            category_mask: IS_HUGE,
            category_anyof_mask: IS_PRESENT | IS_SWAPPED,
            ..ScanArg::default()
        };
        self.walk(range, &not_huge, |run, _| found(run))
    }

    /// Calls `found` for every run of pages in `range` that are in memory or swapped out, with their kinds; in order.
    /// This touches no page itself: a fact that the entry lacks, for example the backing by a file, would cost a cache
    /// miss a page. `ENOTTY` where only entries can be read.
    pub fn kinds(
        &self,
        range: VirtRange,
        mut found: impl FnMut(VirtRange, PageKinds),
    ) -> Result<()> {
        failpoints::check(Op::PagemapScan)?;
        let all = ScanArg {
            category_anyof_mask: IS_PRESENT | IS_SWAPPED,
            return_mask: PageKinds::all().bits(),
            ..ScanArg::default()
        };
        self.walk(range, &all, |run, categories| {
            found(run, PageKinds::from_bits_truncate(categories));
        })
    }

    /// Counts the pages of `range` that are in memory, belong to no file, and are not mapped by this process alone
    /// (`PM_MMAP_EXCLUSIVE`, bit 56 of an entry): shared with the other side of a fork, or the zero page.
    pub fn count_not_exclusive(&self, range: VirtRange) -> Result<u64> {
        failpoints::check(Op::PagemapScan)?;
        let mut pages = 0;
        self.each_entry(range, |_, entry| pages += u64::from(Entry(entry).is_not_exclusive()))?;
        Ok(pages)
    }

    /// Calls `found` for every page of `range`, with its entry.
    pub fn entries(&self, range: VirtRange, mut found: impl FnMut(VirtRange, Entry)) -> Result<()> {
        failpoints::check(Op::PagemapScan)?;
        self.each_entry(range, |page, entry| found(page, Entry(entry)))
    }

    /// Has the kernel answer `ask` for every region of `range`.
    fn walk(
        &self,
        range: VirtRange,
        ask: &ScanArg,
        mut found: impl FnMut(VirtRange, u64),
    ) -> Result<()> {
        let mut at = range;
        while !at.is_empty() {
            let mut regions = [Region::default(); 512];
            let arg = ScanArg {
                category_inverted: ask.category_inverted,
                category_mask: ask.category_mask,
                category_anyof_mask: ask.category_anyof_mask,
                return_mask: ask.return_mask,
                ..ScanArg::over(at, &mut regions)
            };
            // SAFETY: the vector is `regions`, of the length in the argument.
            let (filled, walk_end) = unsafe { rustix::ioctl::ioctl(&self.pagemap, Scan { arg }) }?;
            for region in &regions[..filled] {
                let run = VirtRange::between(region.start as usize, region.end as usize);
                found(run, region.categories);
            }
            at = VirtRange::between(walk_end.max(at.start + 1), range.end());
        }
        Ok(())
    }

    fn scan_runs(&self, range: VirtRange, merged: &mut Merger<'_>) -> Result<()> {
        let mut at = range;
        while !at.is_empty() {
            let mut regions = [Region::default(); 128];
            let (filled, walk_end) = scan(self.pagemap.as_fd(), at, 0, &mut regions)?;
            for region in &regions[..filled] {
                let run = VirtRange::between(region.start as usize, region.end as usize);
                if region.categories & IS_PRESENT != 0 {
                    merged.add(run);
                } else {
                    self.entry_runs(run, merged)?;
                }
            }
            at = VirtRange::between(walk_end.max(at.start + 1), range.end());
        }
        Ok(())
    }

    fn entry_runs(&self, range: VirtRange, merged: &mut Merger<'_>) -> Result<()> {
        self.each_entry(range, |page, entry| {
            if self.is_private(entry) {
                merged.add(page);
            }
        })
    }

    fn each_entry(&self, range: VirtRange, mut found: impl FnMut(VirtRange, u64)) -> Result<()> {
        const BATCH: usize = 512;
        let page = page_size_bytes();
        let mut at = range;
        while !at.is_empty() {
            let part = VirtRange::new(at.start, at.len.min(BATCH * page));
            let mut entries = [0u8; BATCH * 8];
            let entries = &mut entries[..part.len / page * 8];
            self.read_entries(part, entries)?;
            for (i, entry) in entries.chunks_exact(8).enumerate() {
                let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
                found(VirtRange::new(part.start + i * page, page), entry);
            }
            at = VirtRange::between(part.end(), range.end());
        }
        Ok(())
    }

    fn is_private(&self, entry: u64) -> bool {
        if entry & ENTRY_FILE != 0 {
            return false;
        }
        if entry & ENTRY_PRESENT != 0 {
            return true;
        }
        entry & ENTRY_SWAPPED != 0 && self.marker.get() != Some(&(entry & ENTRY_SWAP_TYPE))
    }

    fn read_entries(&self, range: VirtRange, buffer: &mut [u8]) -> Result<()> {
        let at = (range.start / page_size_bytes() * 8) as u64;
        memfile::read_exact_at(self.pagemap.as_fd(), buffer, at)
    }
}

/// Joins neighbouring runs.
struct Merger<'a> {
    run: VirtRange,
    pages: u64,
    found: &'a mut dyn FnMut(VirtRange),
}

impl Merger<'_> {
    fn add(&mut self, run: VirtRange) {
        if !self.run.is_empty() && self.run.end() == run.start {
            self.run.len += run.len;
        } else {
            self.hand_over();
            self.run = run;
        }
    }

    fn hand_over(&mut self) {
        if !self.run.is_empty() {
            self.pages += (self.run.len / page_size_bytes()) as u64;
            (self.found)(self.run);
        }
    }

    fn finish(mut self) -> u64 {
        self.hand_over();
        self.pages
    }
}

/// One `PAGEMAP_SCAN` for pages that are not file pages and are present or swapped, `most` at most (0: all); returns
/// the number of regions filled in and the end of the walk.
fn scan(
    pagemap: crate::BorrowedFd<'_>,
    range: VirtRange,
    most: u64,
    regions: &mut [Region],
) -> Result<(usize, usize)> {
    let arg = ScanArg {
        category_inverted: IS_FILE,
        category_mask: IS_FILE,
        category_anyof_mask: IS_PRESENT | IS_SWAPPED,
        return_mask: IS_PRESENT,
        max_pages: most,
        ..ScanArg::over(range, regions)
    };
    // SAFETY: the vector is `regions`, of the length in the argument.
    unsafe { rustix::ioctl::ioctl(pagemap, Scan { arg }) }
}

struct Scan {
    arg: ScanArg,
}

// SAFETY: the opcode is PAGEMAP_SCAN, with its own structure; the answer is a count of regions.
unsafe impl Ioctl for Scan {
    type Output = (usize, usize);
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<ScanArg>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.arg).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, arg: *mut c_void) -> Result<(usize, usize)> {
        // SAFETY: rustix passes back the pointer that `as_ptr` returned, to our structure.
        let walk_end = unsafe { (*arg.cast::<ScanArg>()).walk_end };
        Ok((out as usize, walk_end as usize))
    }
}

//! The page cache of a file: how much it holds of the file, and how to empty it.

use rustix::fs::{self, Advice};
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::failpoints::{self, Op};
use crate::units::page_size_bytes;
use crate::{AsRawFd, BorrowedFd, Errno, Result};

/// `cachestat(2)`; the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// Writes dirty pages and drops the file's pages from the cache (`posix_fadvise(2)`), except mapped ones.
pub fn drop_cached(file: BorrowedFd<'_>) -> Result<()> {
    fs::fdatasync(file)?;
    fs::fadvise(file, 0, None, Advice::DontNeed)
}

/// Returns true if the cache holds the page that begins at `offset_bytes` (`mincore(2)`). Always true for a file that
/// the caller may not write, because the kernel hides its residency; nothing is read.
pub fn holds(file: BorrowedFd<'_>, offset_bytes: u64) -> Result<bool> {
    let mut page = [0];
    residency(file, offset_bytes, &mut page)?;
    Ok(page[0] & 1 != 0)
}

/// Fills in a byte for each page from `offset_bytes` on, the start of a page; its lowest bit says that the cache holds
/// the page (`mincore(2)`).
#[allow(unsafe_code)]
fn residency(file: BorrowedFd<'_>, offset_bytes: u64, pages: &mut [u8]) -> Result<()> {
    let (nowhere, len_bytes) = (core::ptr::null_mut(), pages.len() * page_size_bytes());
    // SAFETY: a mapping at an address of the kernel's choice overlaps nothing, and nothing accesses
    // it. mincore(2) writes a byte for each of its pages.
    unsafe {
        let shown =
            mm::mmap(nowhere, len_bytes, ProtFlags::READ, MapFlags::SHARED, file, offset_bytes)?;
        let answer = match libc::mincore(shown, len_bytes, pages.as_mut_ptr()) {
            0 => Ok(()),
            _ => Err(crate::errno::last()),
        };
        mm::munmap(shown, len_bytes)?;
        answer
    }
}

/// The first page in `from .. end` of the file, both page-aligned, that the cache does not hold and for which
/// `is_absent` returns true; `end` if there is none.
pub(crate) fn first_absent(
    file: BorrowedFd<'_>,
    from: u64,
    end: u64,
    mut is_absent: impl FnMut(u64) -> Result<bool>,
) -> Result<u64> {
    const WINDOW_PAGES: usize = 512;
    let page_bytes = page_size_bytes() as u64;
    let mut pages = [0; WINDOW_PAGES];
    let mut at = from;
    while at < end {
        let count = ((end - at) / page_bytes).min(WINDOW_PAGES as u64) as usize;
        residency(file, at, &mut pages[..count])?;
        for page in &pages[..count] {
            if page & 1 == 0 && is_absent(at)? {
                return Ok(at);
            }
            at += page_bytes;
        }
    }
    Ok(end)
}

/// Bytes that the cache holds of the `len_bytes` from `offset_bytes` on, the start of a page
/// (`mincore(2)`).
pub(crate) fn resident_bytes(
    file: BorrowedFd<'_>,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<u64> {
    const WINDOW_PAGES: u64 = 512;
    let page_bytes = page_size_bytes() as u64;
    let mut pages = [0; WINDOW_PAGES as usize];
    let (mut at, end, mut resident) = (offset_bytes, offset_bytes.saturating_add(len_bytes), 0);
    while at < end {
        let count = (end - at).div_ceil(page_bytes).min(WINDOW_PAGES);
        let pages = &mut pages[..count as usize];
        residency(file, at, pages)?;
        resident += pages.iter().filter(|page| **page & 1 != 0).count() as u64 * page_bytes;
        at += count * page_bytes;
    }
    Ok(resident)
}

/// The state of the cache for a part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    /// Bytes that it holds.
    pub bytes: u64,
    /// Bytes that it held and no longer holds; for a file in memory: those swapped out.
    pub evicted_bytes: u64,
}

/// Bytes of the file that the cache holds (`cachestat(2)`, Linux 6.5; before: `ENOSYS`).
pub fn cached_bytes(file: BorrowedFd<'_>) -> Result<u64> {
    // From 0 to the end of the file.
    cached(file, 0, 0).map(|cached| cached.bytes)
}

/// The state of the cache for `len_bytes` from `offset_bytes` on; 0 bytes stands for all that follows (`cachestat(2)`,
/// Linux 6.5; before: `ENOSYS`).
#[allow(unsafe_code)]
pub fn cached(file: BorrowedFd<'_>, offset_bytes: u64, len_bytes: u64) -> Result<Cached> {
    failpoints::check(Op::Cachestat)?;
    let range = [offset_bytes, len_bytes];
    let mut pages = [0u64; 5];
    // SAFETY: cachestat(2) reads a range of two numbers and writes five.
    let answer = unsafe {
        let (range, pages) = (range.as_ptr(), pages.as_mut_ptr());
        crate::passthrough::by_number()(SYS_CACHESTAT, file.as_raw_fd(), range, pages, 0)
    };
    if answer != 0 {
        return Err(crate::errno::last());
    }
    let bytes = |pages: u64| pages.checked_mul(page_size_bytes() as u64).ok_or(Errno::OVERFLOW);
    Ok(Cached { bytes: bytes(pages[0])?, evicted_bytes: bytes(pages[3])? })
}

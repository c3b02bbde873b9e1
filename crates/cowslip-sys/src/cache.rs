//! The page cache of a file: how much of the file it holds, and none of it.

use rustix::fs::{self, Advice};
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::units::page_size_bytes;
use crate::{AsRawFd, BorrowedFd, Errno, Result};

/// `cachestat(2)`; the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// Writes what is dirty, and drops the file's pages from the cache (`posix_fadvise(2)`), except those
/// that somebody has mapped.
pub fn drop_cached(file: BorrowedFd<'_>) -> Result<()> {
    fs::fdatasync(file)?;
    fs::fadvise(file, 0, None, Advice::DontNeed)
}

/// Whether the cache holds the page at `offset_bytes`, where one begins (`mincore(2)`). Yes for every page of a
/// file that is not the caller's to write, as the kernel tells nobody else; nothing is read.
#[allow(unsafe_code)]
pub fn holds(file: BorrowedFd<'_>, offset_bytes: u64) -> Result<bool> {
    let (nowhere, len_bytes, mut page) = (core::ptr::null_mut(), page_size_bytes(), 0u8);
    // SAFETY: a mapping at an address of the kernel's choice overlaps nothing; nobody looks at it.
    // mincore(2) writes a byte for its one page.
    let answer = unsafe {
        let shown =
            mm::mmap(nowhere, len_bytes, ProtFlags::READ, MapFlags::SHARED, file, offset_bytes)?;
        let answer = match libc::mincore(shown, len_bytes, &raw mut page) {
            0 => Ok(()),
            _ => Err(crate::process::last_errno()),
        };
        mm::munmap(shown, len_bytes)?;
        answer
    };
    answer.map(|()| page & 1 != 0)
}

/// What the cache holds of a part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    /// Bytes that it holds.
    pub bytes: u64,
    /// Bytes that it held and does not any more; of a file in memory: what is swapped out.
    pub evicted_bytes: u64,
}

/// Bytes of the file that the cache holds (`cachestat(2)`, Linux 6.5; before: `ENOSYS`).
pub fn cached_bytes(file: BorrowedFd<'_>) -> Result<u64> {
    // From 0, as long as the file is.
    cached(file, 0, 0).map(|cached| cached.bytes)
}

/// What the cache holds of `len_bytes` from `offset_bytes` on; 0 bytes: of all that follows (`cachestat(2)`, Linux 6.5;
/// before: `ENOSYS`).
#[allow(unsafe_code)]
pub fn cached(file: BorrowedFd<'_>, offset_bytes: u64, len_bytes: u64) -> Result<Cached> {
    let range = [offset_bytes, len_bytes];
    let mut pages = [0u64; 5];
    // SAFETY: cachestat(2) reads a range of two numbers and writes five.
    let answer = unsafe {
        let (range, pages) = (range.as_ptr(), pages.as_mut_ptr());
        crate::passthrough::by_number()(SYS_CACHESTAT, file.as_raw_fd(), range, pages, 0)
    };
    if answer != 0 {
        return Err(crate::process::last_errno());
    }
    let bytes = |pages: u64| pages.checked_mul(page_size_bytes() as u64).ok_or(Errno::OVERFLOW);
    Ok(Cached { bytes: bytes(pages[0])?, evicted_bytes: bytes(pages[3])? })
}

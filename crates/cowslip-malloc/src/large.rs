//! Large blocks: on huge pages from the start where they are filled, and returned to the kernel where glibc would
//! return them.
//!
//! **Blocks from 64 MiB on** begin on huge pages, if the preload library has them in an arena: a program mostly fills
//! such a block, and at once, and base pages take ten times as long. The price is that it holds 2 MiB for each page
//! that is touched. Zeroed blocks (`calloc`) begin on base pages: they may be sparse tables.
//!
//! **Freed blocks** that are larger than any before are returned at once. jemalloc keeps freed memory for ten seconds,
//! and looks at its clock every thousand requests: a program that is loaded and then waits, or forks, keeps the tables
//! that it outgrew. glibc gives blocks from 128 KiB on mappings of their own, and unmaps them. Each freed one raises
//! that size to its own, so that blocks which come and go stay (`M_MMAP_THRESHOLD`, `mallopt(3)`). jemalloc does the
//! same for blocks from 8 MiB on (`oversize_threshold`).
//!
//! # Safety
//! The blocks are jemalloc's. A thread that allocates or frees a block is in none of jemalloc's functions, so none of
//! its locks is held here.

use core::ffi::c_void;
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tikv_jemalloc_sys as jemalloc;

use crate::control;
use crate::preload;

const FILLED_BYTES: usize = 64 << 20;

/// Large blocks begin on pages (`cache_oblivious:false`), and hardly any others do.
const PAGE_BYTES: usize = 4096;

/// The size of the largest block that was freed, and at least glibc's first threshold.
static LARGEST: AtomicUsize = AtomicUsize::new(128 << 10);

/// Has a block that jemalloc has just handed out, if any, begin on huge pages if it is large.
#[inline]
pub(crate) fn begin(block: *mut c_void, size: usize) -> *mut c_void {
    if size >= FILLED_BYTES && !block.is_null() {
        begin_huge(block, size);
    }
    block
}

#[cold]
fn begin_huge(block: *mut c_void, size: usize) {
    type PreferHuge = unsafe extern "C" fn(*mut c_void, usize);
    let prefer_huge = preload::PREFER_HUGE.get();
    if !prefer_huge.is_null() {
        // SAFETY: the preload library's symbol has this type; it takes any range.
        unsafe { transmute::<*mut c_void, PreferHuge>(prefer_huge)(block, size) };
    }
}

/// The size of a block that is about to be freed, if that is larger than any before; else 0.
#[inline]
pub(crate) unsafe fn freed_bytes(block: *mut c_void) -> usize {
    if !(block as usize).is_multiple_of(PAGE_BYTES) || block.is_null() {
        return 0;
    }
    // SAFETY: a block of jemalloc's.
    let size = unsafe { jemalloc::malloc_usable_size(block) };
    if size > LARGEST.load(Relaxed) { size } else { 0 }
}

/// Returns freed memory to the kernel, after a block of this size was freed.
#[cold]
pub(crate) fn give_back(size: usize) {
    LARGEST.fetch_max(size, Relaxed);
    control::purge();
}

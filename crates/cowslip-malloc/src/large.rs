//! Large blocks: on huge pages from the start where they are filled, and given back to the kernel where glibc's would be.
//!
//! **Blocks from 64 MiB on** begin on huge pages, if the preload library has them in an arena: what a program asks for in one
//! block it fills, mostly, and at once, and base pages take ten times as long. The price is that such a block holds 2 MiB for
//! each page that is touched. Blocks that are to be zero (`calloc`) begin on base pages: those may be sparse tables.
//!
//! **Freed blocks** that are larger than any before go back at once. jemalloc keeps what is freed for ten seconds, and looks
//! at its clock every thousand requests: a program that is loaded and then waits, or forks, keeps the tables that it outgrew.
//! glibc maps blocks from 128 KiB on by themselves, and unmaps them; each that is freed raises that size to its own, so that
//! blocks which come and go stay (`M_MMAP_THRESHOLD`, `mallopt(3)`). From 8 MiB on jemalloc does so by itself
//! (`oversize_threshold`).
//!
//! # Safety
//! The blocks are jemalloc's. Who asks for a block or frees one is in none of its functions, so that none of its locks is
//! held here.

use core::ffi::c_void;
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tikv_jemalloc_sys as jemalloc;

use crate::preload;

const FILLED_BYTES: usize = 64 << 20;

/// Large blocks begin on pages (`cache_oblivious:false`), and hardly any others do.
const PAGE_BYTES: usize = 4096;

/// A block of this size was the largest that was freed.
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

/// Gives back what was freed, after a block of that size was.
#[cold]
pub(crate) fn give_back(size: usize) {
    LARGEST.fetch_max(size, Relaxed);
    // SAFETY: a name of jemalloc's that takes and gives nothing: all arenas (4096).
    unsafe {
        let name = c"arena.4096.purge".as_ptr();
        jemalloc::mallctl(name, ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0);
    }
}

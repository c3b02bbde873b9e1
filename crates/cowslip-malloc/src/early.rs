//! glibc's malloc for the first MiBs. Most programs never need more; jemalloc would cost each of their forks some fifty
//! pages, and a small server a tenth of its memory.
//!
//! ```text
//!  base ├── glibc's blocks ──┤ base + LIMIT_BYTES      everything else: jemalloc's
//! ```
//! The first request that does not fit makes jemalloc the allocator, for good. Blocks of glibc's stay where they are until
//! they are freed or resized; the address of a block tells its owner.
//!
//! glibc is set to take memory by `brk` alone, and to keep it, and jemalloc is built and set to use mappings only, so
//! that nothing else lies in that range. Where `brk` fails, glibc takes a mapping elsewhere. Such a block is freed at
//! once, and jemalloc begins.
//!
//! # Safety
//! A function of glibc's gets blocks of that range only; jemalloc's get all others. The functions have the types by
//! which they are called (`malloc(3)`, `posix_memalign(3)`).

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tikv_jemalloc_sys as jemalloc;

use crate::control::{is_jemalloc, set_jemalloc};
use crate::forks;
use crate::large;
use crate::libc_symbols::Next;
use crate::rest;
use crate::settings;

/// A program with less has no arena either.
const LIMIT_BYTES: usize = 4 << 20;
/// A larger request is jemalloc's at once.
const LARGE_BYTES: usize = LIMIT_BYTES / 4;

/// The beginning of glibc's heap. Without one, an address below which all blocks lie.
static BASE: AtomicUsize = AtomicUsize::new(usize::MAX - LIMIT_BYTES);

static MALLOC: Next = Next::new(c"malloc");
static CALLOC: Next = Next::new(c"calloc");
static REALLOC: Next = Next::new(c"realloc");
static FREE: Next = Next::new(c"free");
static MEMALIGN: Next = Next::new(c"memalign");
static USABLE: Next = Next::new(c"malloc_usable_size");

/// Sets up glibc's malloc, before any block is handed out.
pub(crate) fn begin() {
    for function in [&MALLOC, &CALLOC, &REALLOC, &FREE, &MEMALIGN, &USABLE] {
        function.get();
    }
    // SAFETY: mallopt(3) with constants.
    let is_set = forks::register()
        && unsafe {
            settings::glibc(libc::M_MMAP_MAX, 0)
                && settings::glibc(libc::M_ARENA_MAX, 1)
                && settings::glibc(libc::M_TRIM_THRESHOLD, c_int::MAX)
        };
    // SAFETY: sbrk(2) with 0 returns the end of the heap.
    let base = unsafe { libc::sbrk(0) } as usize;
    if is_set && base != usize::MAX {
        BASE.store(base, Relaxed);
    } else {
        settings::begin();
        set_jemalloc();
    }
}

#[inline]
fn is_glibcs(block: *const c_void) -> bool {
    (block as usize).wrapping_sub(BASE.load(Relaxed)) < LIMIT_BYTES
}

/// Makes jemalloc ready. In a thread that forks, it stays that thread's alone until the fork is done: its handlers are
/// no longer called in this fork, and other threads must hold none of its locks.
#[cold]
fn begin_jemalloc() {
    forks::lock_gate();
    settings::begin();
    // SAFETY: jemalloc's own block is returned to it; the gate was locked above.
    unsafe {
        jemalloc::free(jemalloc::malloc(1));
        rest::begin();
        if !forks::is_forking() {
            set_jemalloc();
        }
        forks::unlock_gate();
    }
}

/// Returns a block of glibc's, or null: jemalloc must serve the request from now on, or there is no memory.
#[cold]
fn from_glibc(size: usize, ask: impl FnOnce() -> *mut c_void) -> *mut c_void {
    if size >= LARGE_BYTES {
        return ptr::null_mut();
    }
    let block = ask();
    if block.is_null() || is_glibcs(block) {
        return block;
    }
    // SAFETY: glibc has just handed it out.
    unsafe { glibc_free(block) };
    ptr::null_mut()
}

/// Asks glibc until jemalloc has begun, and then jemalloc.
macro_rules! first_of_glibc {
    ($size:expr, $glibc:expr, $jemalloc:expr) => {{
        if !is_jemalloc() {
            let block = from_glibc($size, || $glibc);
            if !block.is_null() {
                return block;
            }
            begin_jemalloc();
        }
        $jemalloc
    }};
}

pub(crate) unsafe fn malloc(size: usize) -> *mut c_void {
    type Function = unsafe extern "C" fn(usize) -> *mut c_void;
    // SAFETY: see the module.
    unsafe {
        first_of_glibc!(
            size,
            transmute::<*mut c_void, Function>(MALLOC.get())(size),
            large::begin(jemalloc::malloc(size), size)
        )
    }
}

pub(crate) unsafe fn calloc(count: usize, size: usize) -> *mut c_void {
    type Function = unsafe extern "C" fn(usize, usize) -> *mut c_void;
    // SAFETY: see the module.
    unsafe {
        first_of_glibc!(
            count.saturating_mul(size),
            transmute::<*mut c_void, Function>(CALLOC.get())(count, size),
            jemalloc::calloc(count, size)
        )
    }
}

pub(crate) unsafe fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    type Function = unsafe extern "C" fn(usize, usize) -> *mut c_void;
    // SAFETY: see the module.
    unsafe {
        first_of_glibc!(
            size.saturating_add(alignment),
            transmute::<*mut c_void, Function>(MEMALIGN.get())(alignment, size),
            large::begin(jemalloc::aligned_alloc(alignment, size), size)
        )
    }
}

pub(crate) unsafe fn posix_memalign(
    place: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    let is_valid = alignment.is_power_of_two() && alignment.is_multiple_of(size_of::<usize>());
    if is_valid && !is_jemalloc() {
        // SAFETY: see the module; the program passes a place for the address.
        unsafe {
            let block = aligned_alloc(alignment, size);
            if !block.is_null() {
                place.write(block);
                return 0;
            }
        }
    }
    // SAFETY: the program's own call, which passes a place for the address.
    unsafe {
        let error = jemalloc::posix_memalign(place, alignment, size);
        if error == 0 {
            large::begin(*place, size);
        }
        error
    }
}

pub(crate) unsafe fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    type Function = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
    // SAFETY: see the module. A block that glibc moved out of its range is copied once more.
    unsafe {
        if block.is_null() {
            return malloc(size);
        }
        if !is_glibcs(block) {
            let freed = large::freed_bytes(block);
            let resized = large::begin(jemalloc::realloc(block, size), size);
            if freed > 0 && resized != block && !resized.is_null() {
                large::give_back(freed);
            }
            return resized;
        }
        if size == 0 {
            return transmute::<*mut c_void, Function>(REALLOC.get())(block, size);
        }
        let held = malloc_usable_size(block);
        if size <= held && size > held / 2 {
            return block;
        }
        let moved = malloc(size);
        if !moved.is_null() {
            ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), held.min(size));
            glibc_free(block);
        }
        moved
    }
}

pub(crate) unsafe fn free(block: *mut c_void) {
    // SAFETY: see the module.
    unsafe {
        if is_glibcs(block) {
            return glibc_free(block);
        }
        let size = large::freed_bytes(block);
        jemalloc::free(block);
        if size > 0 {
            large::give_back(size);
        }
    }
}

pub(crate) unsafe fn malloc_usable_size(block: *mut c_void) -> usize {
    type Function = unsafe extern "C" fn(*const c_void) -> usize;
    // SAFETY: see the module.
    unsafe {
        if is_glibcs(block) {
            transmute::<*mut c_void, Function>(USABLE.get())(block)
        } else {
            jemalloc::malloc_usable_size(block)
        }
    }
}

#[cold]
unsafe fn glibc_free(block: *mut c_void) {
    type Function = unsafe extern "C" fn(*mut c_void);
    // SAFETY: see the module.
    unsafe { transmute::<*mut c_void, Function>(FREE.get())(block) };
}

//! The memory that is held: given back (`malloc_trim(3)`), and told (`mallinfo(3)`, `malloc_stats(3)`, `malloc_info(3)`).
//!
//! glibc's first MiBs ([`crate::early`]) count as glibc counts them. Of jemalloc's memory, pages with blocks are in use,
//! and freed pages that were not returned yet are free.
//!
//! # Safety
//! Names and types of jemalloc's values are those of its version that is linked in. The functions have the types by
//! which they are called.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr;

use tikv_jemalloc_sys as jemalloc;

use crate::control::{act, is_jemalloc, purge};
use crate::libc_symbols::Next;

const PAGE_BYTES: usize = 4096;

unsafe extern "C" {
    /// Writes text with numbers to a descriptor.
    fn dprintf(descriptor: c_int, text: *const c_char, ...) -> c_int;
}

static TRIM: Next = Next::new(c"malloc_trim");
static INFO: Next = Next::new(c"mallinfo2");
static STATS: Next = Next::new(c"malloc_stats");
static XML: Next = Next::new(c"malloc_info");

/// Bytes of pages in all arenas (4096).
fn bytes(name: &CStr) -> usize {
    let (mut epoch, mut pages, mut len) = (1_u64, 0_usize, size_of::<usize>());
    // SAFETY: see the module; a written epoch has the counts renewed.
    unsafe {
        let (value, size) = ((&raw mut epoch).cast(), size_of_val(&epoch));
        jemalloc::mallctl(c"epoch".as_ptr(), ptr::null_mut(), ptr::null_mut(), value, size);
        let place = (&raw mut pages).cast();
        jemalloc::mallctl(name.as_ptr(), place, &raw mut len, ptr::null_mut(), 0);
    }
    pages * PAGE_BYTES
}

fn free_bytes() -> usize {
    bytes(c"stats.arenas.4096.pdirty")
}

/// `malloc_trim(3)`. Blocks that other threads keep for their next requests stay.
pub(crate) unsafe fn trim(pad: usize) -> c_int {
    type Function = unsafe extern "C" fn(usize) -> c_int;
    // SAFETY: see the module.
    let of_glibc = unsafe { transmute::<*mut c_void, Function>(TRIM.get())(pad) };
    if !is_jemalloc() {
        return of_glibc;
    }
    act(c"thread.tcache.flush");
    let freed = free_bytes();
    purge();
    (of_glibc != 0 || freed > 0).into()
}

/// `mallinfo2(3)`.
pub(crate) unsafe fn info() -> libc::mallinfo2 {
    type Function = unsafe extern "C" fn() -> libc::mallinfo2;
    // SAFETY: see the module. An older libc without it has no caller; `mallinfo` then shows jemalloc's alone.
    let mut info = unsafe {
        match INFO.get() {
            next if next.is_null() => core::mem::zeroed(),
            next => transmute::<*mut c_void, Function>(next)(),
        }
    };
    if is_jemalloc() {
        let (used, free) = (bytes(c"stats.arenas.4096.pactive"), free_bytes());
        info.arena += used + free;
        info.uordblks += used;
        info.fordblks += free;
        info.keepcost += free;
    }
    info
}

/// `mallinfo(3)`: what does not fit into an `int` wraps.
pub(crate) unsafe fn old_info() -> libc::mallinfo {
    // SAFETY: it takes nothing.
    let info = unsafe { info() };
    libc::mallinfo {
        arena: info.arena as c_int,
        ordblks: info.ordblks as c_int,
        smblks: info.smblks as c_int,
        hblks: info.hblks as c_int,
        hblkhd: info.hblkhd as c_int,
        usmblks: info.usmblks as c_int,
        fsmblks: info.fsmblks as c_int,
        uordblks: info.uordblks as c_int,
        fordblks: info.fordblks as c_int,
        keepcost: info.keepcost as c_int,
    }
}

/// `malloc_stats(3)`.
pub(crate) unsafe fn print() {
    // SAFETY: see the module; the text takes three numbers of that type.
    unsafe {
        transmute::<*mut c_void, unsafe extern "C" fn()>(STATS.get())();
        if is_jemalloc() {
            let (used, free) = (bytes(c"stats.arenas.4096.pactive"), free_bytes());
            let text =
                c"jemalloc (cowslip run):\nsystem bytes     = %10zu\nin use bytes     = %10zu\n";
            dprintf(libc::STDERR_FILENO, text.as_ptr(), used + free, used);
        }
    }
}

/// The number of jemalloc's arenas.
fn arenas() -> u32 {
    let (mut arenas, mut len) = (0_u32, size_of::<u32>());
    // SAFETY: see the module.
    unsafe {
        let place = (&raw mut arenas).cast();
        jemalloc::mallctl(c"opt.narenas".as_ptr(), place, &raw mut len, ptr::null_mut(), 0);
    }
    arenas
}

/// `malloc_info(3)`: the totals and the number of heaps, once jemalloc has begun.
pub(crate) unsafe fn print_xml(options: c_int, file: *mut libc::FILE) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *mut libc::FILE) -> c_int;
    // SAFETY: see the module; the text takes as many numbers of that type.
    unsafe {
        if !is_jemalloc() || options != 0 {
            return transmute::<*mut c_void, Function>(XML.get())(options, file);
        }
        let info = info();
        libc::fprintf(file, c"<malloc version=\"1\">\n".as_ptr());
        for arena in 0..arenas() {
            libc::fprintf(file, c"<heap nr=\"%u\">\n</heap>\n".as_ptr(), arena);
        }
        let text = c"<total type=\"fast\" count=\"0\" size=\"0\"/>\n\
            <total type=\"rest\" count=\"0\" size=\"%zu\"/>\n<total type=\"mmap\" count=\"0\" size=\"0\"/>\n\
            <system type=\"current\" size=\"%zu\"/>\n<system type=\"max\" size=\"%zu\"/>\n\
            <aspace type=\"total\" size=\"%zu\"/>\n<aspace type=\"mprotect\" size=\"%zu\"/>\n</malloc>\n";
        let held = info.arena;
        libc::fprintf(file, text.as_ptr(), info.fordblks, held, held, held, held);
    }
    0
}

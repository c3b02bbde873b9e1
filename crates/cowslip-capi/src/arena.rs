//! Arenas: memory that can be frozen.

use std::ffi::{c_char, c_void};

use cowslip::image::Restored;
use cowslip::raw::Usage;
use cowslip::units::{ByteCount, VirtRange};
use cowslip::{Arena, Backing, Prot, host};

use crate::boundary::{self, Answer, Options, guard, hand_out, shared};
use crate::error::{self, Failure, cowslip_error, cowslip_status};
use crate::handles::{self, boxed};

/// Memory that can be frozen at one instant.
#[derive(Debug)]
pub struct cowslip_arena(pub(crate) Source);

/// Made, or restored from an image, with memory that may still be on its way.
#[derive(Debug)]
pub(crate) enum Source {
    Made(Arena),
    Restored(Box<Restored>),
}

impl cowslip_arena {
    pub(crate) fn arena(&self) -> &Arena {
        match &self.0 {
            Source::Made(arena) => arena,
            Source::Restored(restored) => restored.arena(),
        }
    }
}

/// The memory that an arena is made of.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum cowslip_backing {
    /// Transparent huge pages where the system gives them, else base pages.
    COWSLIP_BACKING_THP = 0,
    /// Base pages.
    COWSLIP_BACKING_BASE = 1,
    /// Pages of the hugetlb pool.
    COWSLIP_BACKING_HUGETLB = 2,
}

/// Options for a new arena.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct cowslip_arena_options {
    /// sizeof(struct cowslip_arena_options).
    pub size: usize,
    /// A cowslip_backing.
    pub backing: u32,
    /// 1: freeze without userfaultfd even where it is available.
    pub no_userfaultfd: u32,
    /// The start address, a multiple of 1 GiB; 0: anywhere.
    pub address: usize,
}

// SAFETY: plain numbers, the size first.
unsafe impl Options for cowslip_arena_options {}

pub(crate) fn backing(number: u32) -> Answer<Backing> {
    match number {
        0 => Ok(Backing::Thp),
        1 => Ok(Backing::Base),
        2 => Ok(Backing::Hugetlb),
        _ => Err(Failure::Usage(format!("no cowslip_backing is {number}"))),
    }
}

/// Reserves `capacity` bytes of address space, at most the machine's memory and swap. Memory is taken as it is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_arena_new(
    capacity: u64,
    options: *const cowslip_arena_options,
    arena: *mut *mut cowslip_arena,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let make = || {
        // SAFETY: C's contract.
        let options = unsafe { boundary::options(options) }?;
        let mut builder = Arena::builder(ByteCount(capacity))
            .backing(backing(options.backing)?)
            .userfaultfd(options.no_userfaultfd == 0);
        if !options.address.is_multiple_of(1 << 30) {
            let address = options.address;
            return Err(Failure::Usage(format!("{address:#x} is no multiple of 1 GiB")));
        }
        if options.address != 0 {
            builder = builder.at(options.address);
        }
        let made = cowslip_arena(Source::Made(builder.build()?));
        // SAFETY: C's contract.
        unsafe { hand_over(arena, "arena", made) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, make) }
}

/// # Safety
/// `to` is NULL or may be written to.
pub(crate) unsafe fn hand_over<T>(to: *mut *mut T, name: &'static str, value: T) -> Answer {
    if to.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: the caller promises it.
    unsafe { hand_out(to, name, boxed(value)) }
}

/// Frees the handle. The arena and all its memory live until the last view of it is freed.
///
/// Memory that was allocated from it must no longer be in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_arena_free(arena: *mut cowslip_arena) {
    // SAFETY: C's contract.
    unsafe { handles::free(arena) };
}

/// The arena's addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_arena_range(
    arena: *const cowslip_arena,
    start: *mut *mut c_void,
    length: *mut usize,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let tell = || {
        // SAFETY: C's contract.
        let range = unsafe { shared(arena, "arena") }?.arena().range();
        // SAFETY: C's contract.
        unsafe {
            hand_out(start, "start", range.start as *mut c_void)?;
            hand_out(length, "length", range.len)
        }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, tell) }
}

/// Hands out zeroed memory: whole pages, aligned to 2 MiB from that length on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_alloc(
    arena: *const cowslip_arena,
    length: usize,
    memory: *mut *mut c_void,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let allocate = || {
        if memory.is_null() {
            return Err(Failure::Null("memory"));
        }
        // SAFETY: C's contract.
        let arena = unsafe { shared(arena, "arena") }?.arena();
        let range = arena.allocate(ByteCount(length as u64), Prot::RW)?;
        // SAFETY: C's contract.
        unsafe { hand_out(memory, "memory", range.start as *mut c_void) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, allocate) }
}

/// The whole pages of a range, if the arena handed them out and has not got them back.
fn pages(arena: &Arena, memory: *mut c_void, length: usize) -> Answer<VirtRange> {
    let page = cowslip::units::page_size_bytes();
    if memory.is_null() {
        return Err(Failure::Null("memory"));
    }
    let wrong = |why: &str| Err(Failure::Usage(format!("{length} bytes at {memory:p} {why}")));
    if !memory.addr().is_multiple_of(page) {
        return wrong("do not begin at a page, as memory of cowslip_alloc does");
    }
    let end = length.checked_next_multiple_of(page).and_then(|len| memory.addr().checked_add(len));
    let Some(end) = end else { return wrong("go beyond the end of memory") };
    let range = VirtRange::between(memory.addr(), end);
    if !arena.range().covers(range) {
        return wrong("are not of this arena");
    }
    let is_out = |usage| matches!(usage, Usage::Used | Usage::Detached | Usage::Left);
    if !arena.raw().parts(range).iter().all(|(_, usage, _)| is_out(*usage)) {
        return wrong("are not handed out: they were given back, or never allocated");
    }
    Ok(range)
}

/// Returns memory to the arena: `length` is the length that was passed to cowslip_alloc. COWSLIP_USAGE for memory that
/// is not handed out, or not the arena's.
///
/// The memory must no longer be in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_dealloc(
    arena: *const cowslip_arena,
    memory: *mut c_void,
    length: usize,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let release = || {
        // SAFETY: C's contract.
        let arena = unsafe { shared(arena, "arena") }?.arena();
        // For a length of 0, cowslip_alloc handed out as much.
        let range = pages(arena, memory, length.max(1))?;
        // SAFETY: C's contract.
        unsafe { arena.release(range) }.map_err(Failure::from)
    };
    // SAFETY: C's contract.
    unsafe { guard(error, release) }
}

/// Makes whole pages zeroes and returns their memory to the system; they stay handed out.
///
/// No other thread may use the memory meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_discard(
    arena: *const cowslip_arena,
    memory: *mut c_void,
    length: usize,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let discard = || {
        // SAFETY: C's contract.
        let arena = unsafe { shared(arena, "arena") }?.arena();
        let range = pages(arena, memory, length)?;
        // SAFETY: C's contract.
        unsafe { arena.discard(range) }.map_err(Failure::from)
    };
    // SAFETY: C's contract.
    unsafe { guard(error, discard) }
}

/// The arena's counters as a JSON object of numbers; for cowslip_text_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_metrics_json(
    arena: *const cowslip_arena,
    json: *mut *mut c_char,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let tell = || {
        // SAFETY: C's contract.
        let fields = unsafe { shared(arena, "arena") }?.arena().metrics().fields();
        let object: serde_json::Map<_, _> =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        // SAFETY: C's contract.
        unsafe { hand_text(json, "json", &serde_json::Value::from(object).to_string()) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, tell) }
}

/// The capabilities of this kernel with these privileges, tried out, as `cowslip doctor --json` prints them; for
/// cowslip_text_free. It takes a fraction of a second.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_doctor_json(
    json: *mut *mut c_char,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    // SAFETY: C's contract.
    unsafe { guard(error, || hand_text(json, "json", &host::report().to_json().to_string())) }
}

/// # Safety
/// `to` is NULL or may be written to.
unsafe fn hand_text(to: *mut *mut c_char, name: &'static str, text: &str) -> Answer {
    if to.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: the caller promises it.
    unsafe { hand_out(to, name, error::text(text).into_raw()) }
}

/// Frees a text that the library handed out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: C's contract: it is from CString::into_raw.
        drop(unsafe { std::ffi::CString::from_raw(text) });
    }
}

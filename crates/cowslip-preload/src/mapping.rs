//! `mmap` and its family.
//!
//! # Safety
//! Every function is a libc function: its caller keeps to that function's contract, and gets what it
//! would have got from the kernel, in other memory. Ranges given back or changed are the program's.

use core::ffi::{c_int, c_void};

use cowslip::Prot;
use cowslip::units::{ByteCount, VirtRange, page_size_bytes, round_up};
use cowslip_sys::process::Quiet;
use cowslip_sys::{Errno, passthrough};

use crate::program::{self, allocate, arena_part, config, guarded};
use crate::say;

const FAILED: *mut c_void = usize::MAX as *mut c_void;

/// Flags of an ordinary private anonymous mapping.
const ORDINARY: c_int = libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK;
const PRIVATE_ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    crate::forking::register();
    let ordinary = addr.is_null()
        && flags & !ORDINARY == 0
        && flags & PRIVATE_ANONYMOUS == PRIVATE_ANONYMOUS
        && prot & !(libc::PROT_READ | libc::PROT_WRITE) == 0;
    if ordinary && len >= config().threshold_bytes {
        let quiet = Quiet::enter();
        let range = guarded(|| allocate(len, Prot::from_bits_retain(prot as u32)), || None);
        drop(quiet);
        if let Some(range) = range {
            if flags & libc::MAP_POPULATE != 0 {
                // As for mmap, failing to populate is no failure. 23 is MADV_POPULATE_WRITE.
                // SAFETY: the range was just handed out, for this mapping.
                unsafe { passthrough::madvise(range.start as *mut c_void, range.len, 23) };
            }
            return range.start as *mut c_void;
        }
    }
    // SAFETY: the program's own call.
    let mapped = unsafe { passthrough::mmap(addr, len, prot, flags, fd, offset) };
    if mapped != FAILED && flags & libc::MAP_FIXED != 0 {
        let _quiet = Quiet::enter();
        if let Some((arena, part)) = arena_part(mapped as usize, len) {
            arena.surrender(part.outer_aligned(page_size_bytes()));
        }
    }
    mapped
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the same function where long is 64 bits.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// Handles the part of a range that lies in the arena, then has the kernel handle what lies before
/// and after it. `None`: all of it is the kernel's.
fn split(
    addr: *mut c_void,
    len: usize,
    ours: impl FnOnce(&cowslip::Arena, VirtRange) -> Result<(), Errno>,
    kernel: impl Fn(VirtRange) -> c_int,
) -> Option<c_int> {
    let page = page_size_bytes();
    if !(addr as usize).is_multiple_of(page) {
        return None;
    }
    let whole = VirtRange::new(addr as usize, round_up(len, page)?);
    let mut quiet = Quiet::enter();
    let (arena, part) = arena_part(whole.start, whole.len)?;
    let done = guarded(|| ours(arena, part), || Err(Errno::NOMEM));
    if let Err(errno) = done {
        quiet.set_errno(errno);
        return Some(-1);
    }
    drop(quiet);
    let outside =
        [VirtRange::between(whole.start, part.start), VirtRange::between(part.end(), whole.end())];
    let failed =
        outside.into_iter().filter(|range| !range.is_empty()).any(|range| kernel(range) != 0);
    Some(if failed { -1 } else { 0 })
}

fn errno_of(error: &cowslip::Error) -> Errno {
    Errno::from_raw_os_error(error.errno().unwrap_or(libc::EAGAIN))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    let ours = |arena: &cowslip::Arena, part| {
        // SAFETY: the program gives this memory up.
        unsafe { arena.release(part) }.map_err(|error| errno_of(&error))
    };
    // SAFETY: the program's own call, or a part of it.
    let kernel = |r: VirtRange| unsafe { passthrough::munmap(r.start as *mut c_void, r.len) };
    split(addr, len, ours, kernel).unwrap_or_else(|| kernel(VirtRange::new(addr as usize, len)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    let ours = |arena: &cowslip::Arena, part| {
        // SAFETY: the program changes what it may do with its own memory.
        unsafe { arena.protect(part, Prot::from_bits_retain(prot as u32)) }
            .map_err(|error| errno_of(&error))
    };
    // SAFETY: the program's own call, or a part of it.
    let kernel =
        |r: VirtRange| unsafe { passthrough::mprotect(r.start as *mut c_void, r.len, prot) };
    split(addr, len, ours, kernel).unwrap_or_else(|| kernel(VirtRange::new(addr as usize, len)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the program's own call, or a part of it.
    let kernel =
        |r: VirtRange| unsafe { passthrough::madvise(r.start as *mut c_void, r.len, advice) };
    let ours = |arena: &cowslip::Arena, part: VirtRange| match advice {
        libc::MADV_DONTNEED => {
            // SAFETY: the program gives this content up.
            unsafe { arena.discard(part) }.map_err(|error| errno_of(&error))
        }
        // Advice that may be ignored, or that an arena follows anyway.
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_FREE
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP
        | libc::MADV_DOFORK
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT => Ok(()),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => match kernel(part) {
            0 => Ok(()),
            _ => Err(Errno::NOMEM),
        },
        _ => {
            say!("madvise({advice}) on {part} is refused: an arena cannot follow it");
            Err(Errno::INVAL)
        }
    };
    split(addr, len, ours, kernel).unwrap_or_else(|| kernel(VirtRange::new(addr as usize, len)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    addr: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let page = page_size_bytes();
    let ours = (|| {
        let old = VirtRange::new(addr as usize, round_up(old_len, page)?);
        let new_len = round_up(new_len, page).filter(|&len| len > 0)?;
        let quiet = Quiet::enter();
        let (arena, part) = arena_part(old.start, old.len)?;
        (part == old && arena.has_used(old)).then_some(())?;
        Some((quiet, arena, old, new_len))
    })();
    let Some((mut quiet, arena, old, new_len)) = ours else {
        // SAFETY: the program's own call.
        return unsafe { passthrough::mremap(addr, old_len, new_len, flags, to) };
    };
    if flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) != 0 {
        quiet.set_errno(Errno::INVAL);
        return FAILED;
    }
    if flags & libc::MREMAP_FIXED == 0 {
        if new_len <= old.len {
            let tail = VirtRange::between(old.start + new_len, old.end());
            if !tail.is_empty() {
                // SAFETY: the program gives the tail up. A failure leaves it mapped, which mremap may.
                let _ = unsafe { arena.release(tail) };
            }
            return addr;
        }
        if let Ok(true) = arena.grow(old, ByteCount(new_len as u64)) {
            return addr;
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            quiet.set_errno(Errno::NOMEM);
            return FAILED;
        }
    }
    drop(quiet);
    // SAFETY: the program asked for its memory to be moved; nobody else uses it meanwhile.
    unsafe { copy_away(arena, old, new_len, (flags & libc::MREMAP_FIXED != 0).then_some(to)) }
}

/// Moves an allocation by copying it.
unsafe fn copy_away(
    arena: &cowslip::Arena,
    old: VirtRange,
    new_len: usize,
    to: Option<*mut c_void>,
) -> *mut c_void {
    let fixed = if to.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a new mapping, at the program's place if it named one.
    let new = unsafe {
        mmap(
            to.unwrap_or(core::ptr::null_mut()),
            new_len,
            libc::PROT_READ | libc::PROT_WRITE,
            PRIVATE_ANONYMOUS | fixed,
            -1,
            0,
        )
    };
    if new == FAILED {
        return FAILED;
    }
    // SAFETY: both are mapped as long as is copied and do not overlap; the old one is given up.
    unsafe {
        core::ptr::copy_nonoverlapping(
            old.start as *const u8,
            new.cast::<u8>(),
            old.len.min(new_len),
        );
        let _quiet = Quiet::enter();
        let _ = arena.release(old);
    }
    new
}

const PR_SET_THP_DISABLE: c_int = 41;
const PR_GET_THP_DISABLE: c_int = 42;

#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    use core::sync::atomic::{AtomicBool, Ordering};
    static ANSWERED: AtomicBool = AtomicBool::new(false);
    match option {
        PR_SET_THP_DISABLE if !config().respect_thp_disable && !config().off => {
            let _quiet = Quiet::enter();
            if a != 0 {
                say!(
                    "prctl(PR_SET_THP_DISABLE) answered, not passed on: it would take the arena's \
                     huge pages away (--respect-thp-disable passes it on)"
                );
            }
            ANSWERED.store(a != 0, Ordering::Relaxed);
            0
        }
        PR_GET_THP_DISABLE if ANSWERED.load(Ordering::Relaxed) => 1,
        // SAFETY: the program's own call.
        _ => unsafe { passthrough::prctl(option, a, b, c, d) },
    }
}

/// Set up early, in the first thread, if no call came before.
#[unsafe(link_section = ".init_array")]
#[used]
static INIT: extern "C" fn() = {
    extern "C" fn init() {
        let _quiet = Quiet::enter();
        program::config();
        crate::forking::register();
        crate::config::leave_children_alone();
    }
    init
};

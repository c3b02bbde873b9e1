//! `mmap`, `munmap`, `mprotect`.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_void};

use cowslip::raw::Usage;
use cowslip::units::{VirtRange, page_size_bytes, round_up};
use cowslip::{Arena, Prot};
use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::{Errno, passthrough};

use crate::arena::{
    registry::{self, arena_part, config, errno_of, guarded, parts, replace_mapping},
    setup::allocate,
};

pub(crate) const FAILED: *mut c_void = usize::MAX as *mut c_void;

/// Flags of an ordinary private anonymous mapping.
const ORDINARY: c_int = libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK;
const PRIVATE_ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const PLACED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    crate::hooks::fork::register();
    let is_ordinary = flags & !(ORDINARY | PLACED) == 0
        && flags & PRIVATE_ANONYMOUS == PRIVATE_ANONYMOUS
        && prot & !(libc::PROT_READ | libc::PROT_WRITE) == 0;
    let ordinary = is_ordinary.then(|| Prot::from_bits_retain(prot as u32));
    // SAFETY: the program's own call.
    let kernel = |flags| unsafe { passthrough::mmap(addr, len, prot, flags, fd, offset) };
    let answer = {
        let mut blocked = BlockedSignals::enter();
        if addr.is_null() && flags & PLACED == 0 {
            let large = ordinary.filter(|_| len >= config().threshold_bytes);
            large.and_then(|prot| guarded(|| allocate(len, prot), || None))
        } else {
            match guarded(|| place(addr as usize, len, flags, ordinary, kernel), || Ok(None)) {
                Ok(placed) => placed,
                Err(errno) => {
                    blocked.set_errno(errno);
                    return FAILED;
                }
            }
        }
    };
    let Some(range) = answer else { return kernel(flags) };
    if flags & libc::MAP_POPULATE != 0 {
        // Like `mmap` itself, it does not fail if populating does.
        // SAFETY: the range was just mapped, for this call.
        unsafe {
            passthrough::madvise(range.start as *mut c_void, range.len, libc::MADV_POPULATE_WRITE)
        };
    }
    range.start as *mut c_void
}

/// A mapping at an address that the program named, if that lies in the arena. Returns `None` if the kernel may be
/// asked. `ordinary` is the protection of a private anonymous mapping.
fn place(
    addr: usize,
    len: usize,
    flags: c_int,
    ordinary: Option<Prot>,
    kernel: impl Fn(c_int) -> *mut c_void,
) -> Result<Option<VirtRange>, Errno> {
    let page = page_size_bytes();
    let Some(len) = round_up(len, page).filter(|&len| len > 0) else { return Ok(None) };
    let range = VirtRange::new(addr, len);
    let Some((arena, part)) = arena_part(addr, len).filter(|_| addr.is_multiple_of(page)) else {
        return Ok(None);
    };
    let ordinary = ordinary.filter(|_| part == range);
    let is_given = || matches!(ordinary.map(|prot| arena.allocate_at(range, prot)), Some(Ok(true)));
    let over = |flags| Some(kernel(flags)).filter(|&at| at == range.start as *mut c_void);
    if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        let flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
        let free = |usage| part == range && usage == Usage::Free;
        if !matches!(arena.raw().claim(part), Ok(true)) {
            // With the flags unchanged, the kernel replaces nothing.
            return Ok(None);
        }
        let is_placed = is_given() || replace_mapping(range, &free, &mut || over(flags)).is_some();
        // The kernel refuses the rest: it is in use.
        return Ok(is_placed.then_some(range));
    }
    if flags & libc::MAP_FIXED != 0 {
        // SAFETY: the program discards the former content, and passes the new protection.
        let renew = |prot| unsafe { arena.raw().remap_zeroed(range, prot) };
        let is_placed = matches!(ordinary.map(renew), Some(Ok(true)))
            || is_given()
            || replace_mapping(range, &|_| true, &mut || over(flags)).is_some();
        // Asked again, the kernel might agree, and the arena would not learn that the place is no longer its own.
        return if is_placed { Ok(Some(range)) } else { Err(process::current_errno()) };
    }
    // Only a hint.
    Ok(if is_given() { Some(range) } else { ordinary.and_then(|prot| allocate(len, prot)) })
}

/// `mmap` by `syscall(2)`: new memory is the kernel's, because the caller may be an allocator that must not be helped.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn mmap_by_number(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program's own call.
    unsafe {
        if flags & PLACED != 0 && arena_part(addr as usize, len).is_some() {
            mmap(addr, len, prot, flags, fd, offset)
        } else {
            passthrough::mmap(addr, len, prot, flags, fd, offset)
        }
    }
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

/// Handles the parts of a range that lie in arenas, then has the kernel handle the others. Returns `None` if all of it
/// is the kernel's.
pub(crate) fn split(
    addr: *mut c_void,
    len: usize,
    ours: impl Fn(&'static Arena, VirtRange) -> Result<(), Errno>,
    kernel: impl Fn(VirtRange) -> c_int,
) -> Option<c_int> {
    let page = page_size_bytes();
    if !(addr as usize).is_multiple_of(page) {
        return None;
    }
    let whole = VirtRange::new(addr as usize, round_up(len, page)?);
    let mut blocked = BlockedSignals::enter();
    arena_part(whole.start, whole.len)?;
    for (arena, part) in parts(whole) {
        let Some(arena) = arena else { continue };
        if let Err(errno) = guarded(|| ours(arena, part), || Err(Errno::NOMEM)) {
            blocked.set_errno(errno);
            return Some(-1);
        }
    }
    for (_, part) in parts(whole).filter(|(arena, _)| arena.is_none()) {
        if kernel(part) != 0 {
            blocked.set_errno(process::current_errno());
            return Some(-1);
        }
    }
    Some(0)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    let ours = |arena: &'static Arena, part| {
        // SAFETY: the program unmaps this memory.
        unsafe { arena.raw().unmap(part) }.map_err(|error| errno_of(&error))
    };
    // SAFETY: the program's own call, or a part of it.
    let kernel = |r: VirtRange| unsafe { passthrough::munmap(r.start as *mut c_void, r.len) };
    split(addr, len, ours, kernel).unwrap_or_else(|| kernel(VirtRange::new(addr as usize, len)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    let ours = |arena: &'static Arena, part| {
        // SAFETY: the program changes the protection of its own memory.
        unsafe { arena.protect(part, Prot::from_bits_retain(prot as u32)) }
            .map_err(|error| errno_of(&error))
    };
    // SAFETY: the program's own call, or a part of it.
    let kernel =
        |r: VirtRange| unsafe { passthrough::mprotect(r.start as *mut c_void, r.len, prot) };
    split(addr, len, ours, kernel).unwrap_or_else(|| kernel(VirtRange::new(addr as usize, len)))
}

/// Sets up early, in the first thread, if no call came before.
#[unsafe(link_section = ".init_array")]
#[used]
static INIT: extern "C" fn() = {
    extern "C" fn init() {
        let _blocked = BlockedSignals::enter();
        if !registry::config().off {
            crate::rt::log::say!("loaded");
        }
        crate::hooks::fork::register();
        crate::hooks::fork::look_up();
        crate::hooks::clone::look_up();
        crate::hooks::proc_stat::look_up();
        crate::hooks::direct_io::look_up();
        crate::hooks::io_uring::look_up();
        crate::hooks::futex::look_up_all();
        crate::hooks::proc_mem::look_up_all();
        crate::hooks::credentials::look_up_all();
        crate::hooks::exec::look_up();
        // The first reading of the clock looks up the kernel's function for it, through libc.
        process::now_ns();
        crate::hooks::exec::begin();
        crate::rt::environment::hide();
    }
    init
};

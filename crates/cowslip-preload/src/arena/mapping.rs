//! Mappings that the program makes: new ones, and those at an address that lies in an arena.

use core::ffi::{c_int, c_void};

use cowslip::Prot;
use cowslip::units::{VirtRange, page_size_bytes, round_up};
use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::{Errno, passthrough};

use crate::arena::ranges::{FAILED, replace_mapping};
use crate::arena::registry::arena_part;
use crate::arena::setup::allocate;
use crate::rt::config::config;
use crate::rt::guard::guarded;

/// Flags of an ordinary private anonymous mapping.
const ORDINARY: c_int = libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK;
const PRIVATE_ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
pub(crate) const PLACED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

/// Maps memory as `mmap(2)` does, from an arena where that is possible.
///
/// # Safety
/// As for `mmap(2)`.
pub(crate) unsafe fn map(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let (flags, fd) = match config().has_guest_memory && is_guest_memory(flags, fd, offset) {
        true => (flags & !libc::MAP_SHARED | PRIVATE_ANONYMOUS, -1),
        false => (flags, fd),
    };
    let is_ordinary = flags & !(ORDINARY | PLACED) == 0
        && flags & PRIVATE_ANONYMOUS == PRIVATE_ANONYMOUS
        && prot & !(libc::PROT_READ | libc::PROT_WRITE) == 0;
    let ordinary = is_ordinary.then(|| Prot::from_bits_retain(prot as u32));
    // SAFETY: the program's own call.
    let kernel = |flags| unsafe { passthrough::mmap(addr, len, prot, flags, fd, offset) };
    let is_anywhere = addr.is_null() && flags & PLACED == 0;
    if is_anywhere && (!is_ordinary || len < config().threshold_bytes) {
        return kernel(flags);
    }
    let answer = {
        let mut blocked = BlockedSignals::enter();
        if is_anywhere {
            ordinary.and_then(|prot| guarded(|| allocate(len, prot), || None))
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

/// Returns true for the RAM of a virtual machine in QEMU: a file in memory by its name, without content so far, mapped
/// shared. The program has said that no other process has it, so that private memory does.
fn is_guest_memory(flags: c_int, fd: c_int, offset: i64) -> bool {
    const NAME: &str = "/memfd:memory-backend-memfd";
    flags & libc::MAP_TYPE == libc::MAP_SHARED
        && flags & libc::MAP_ANONYMOUS == 0
        && offset == 0
        && process::is_empty_memfd(fd, NAME)
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
        if is_given() {
            return Ok(Some(range));
        }
        // What is free in the arena is free to the program. The kernel refuses the rest.
        let _ = arena.raw().vacate(part);
        return Ok(None);
    }
    if flags & libc::MAP_FIXED != 0 {
        // SAFETY: the program discards the former content, and passes the new protection.
        let renew = |prot| unsafe { arena.raw().remap_zeroed(range, prot) };
        let is_placed = matches!(ordinary.map(renew), Some(Ok(true)))
            || is_given()
            || replace_mapping(range, &mut || over(flags)).is_some();
        // Asked again, the kernel might agree, and the arena would not learn that the place is no longer its own.
        return if is_placed { Ok(Some(range)) } else { Err(cowslip_sys::errno::current()) };
    }
    // Only a hint.
    Ok(if is_given() { Some(range) } else { ordinary.and_then(|prot| allocate(len, prot)) })
}

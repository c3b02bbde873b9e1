//! `mprotect`, protection keys and seals.
//!
//! A debugger sets breakpoints against the protection of code (`ptrace(2)`), which the kernel
//! allows in private memory alone. Code that may not be written therefore leaves the arena.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_ulong, c_void};

use cowslip::raw::{Departure, Usage};
use cowslip::units::VirtRange;
use cowslip::{Arena, Prot};
use cowslip_sys::{Errno, passthrough};

use crate::arena::detach;
use crate::arena::ranges::split;
use crate::hooks::madvise::{Answer, request};
use crate::rt::guard::errno_of;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    let is_code = prot & (libc::PROT_EXEC | libc::PROT_WRITE) == libc::PROT_EXEC;
    let ours = |arena: &'static Arena, part: VirtRange| {
        // Like the kernel, which changes what lies before a hole.
        let hole = arena.raw().parts(part).into_iter().find(|(_, usage, _)| *usage == Usage::Free);
        let end = hole.map_or(part.end(), |(hole, ..)| hole.start);
        let whole = VirtRange::between(part.start, end);
        if is_code {
            // If it cannot leave, only a debugger notices.
            let _ = detach::range(arena, whole, Departure::Code);
        }
        // SAFETY: the program changes the protection of its own memory.
        unsafe { arena.protect(whole, Prot::from_bits_retain(prot as u32)) }
            .map_err(|error| errno_of(&error))?;
        if hole.is_some() { Err(Errno::NOMEM) } else { Ok(()) }
    };
    // SAFETY: the program's own call, or a part of it.
    let kernel =
        |r: VirtRange| unsafe { passthrough::mprotect(r.start as *mut c_void, r.len, prot) };
    split(addr, len, ours, kernel).unwrap_or_else(|| kernel(VirtRange::new(addr as usize, len)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pkey_mprotect(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    key: c_int,
) -> c_int {
    // SAFETY: the program's own call, or a part of it.
    let kernel = |r: VirtRange| unsafe {
        passthrough::pkey_mprotect(r.start as *mut c_void, r.len, prot, key)
    };
    request(addr, len, &Answer::Leave, kernel)
}

/// A freeze replaces mappings, and a sealed mapping cannot be replaced.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mseal(addr: *mut c_void, len: usize, flags: c_ulong) -> c_int {
    // SAFETY: the program's own call, or a part of it.
    let kernel = |r: VirtRange| unsafe { passthrough::mseal(r.start as *mut c_void, r.len, flags) };
    request(addr, len, &Answer::Leave, kernel)
}

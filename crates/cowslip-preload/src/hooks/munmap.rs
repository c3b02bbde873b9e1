//! `munmap`.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_void};

use cowslip::Arena;
use cowslip::units::VirtRange;
use cowslip_sys::passthrough;

use crate::arena::ranges::split;
use crate::rt::guard::errno_of;

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

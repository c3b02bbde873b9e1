//! `mincore` and `msync`: free memory of an arena is a hole to the program.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_void};

use cowslip::raw::Usage;
use cowslip::units::VirtRange;
use cowslip_sys::process::BlockedSignals;
use cowslip_sys::{Errno, passthrough};

use crate::arena::registry;

/// Returns true if a part of the range is free memory of an arena: to the program nothing is mapped there.
fn has_hole(addr: *mut c_void, len: usize) -> bool {
    let Some(end) = (addr as usize).checked_add(len) else { return false };
    let _blocked = BlockedSignals::enter();
    let is_free = |part: &(VirtRange, Usage, _)| part.1 == Usage::Free;
    registry::parts(VirtRange::between(addr as usize, end))
        .any(|(arena, part)| arena.is_some_and(|arena| arena.raw().parts(part).iter().any(is_free)))
}

fn no_memory() -> c_int {
    BlockedSignals::enter().set_errno(Errno::NOMEM);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mincore(addr: *mut c_void, len: usize, residence: *mut u8) -> c_int {
    if has_hole(addr, len) {
        return no_memory();
    }
    // SAFETY: the program's own call.
    unsafe { passthrough::mincore(addr, len, residence) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn msync(addr: *mut c_void, len: usize, flags: c_int) -> c_int {
    if has_hole(addr, len) {
        return no_memory();
    }
    // SAFETY: the program's own call.
    unsafe { passthrough::msync(addr, len, flags) }
}

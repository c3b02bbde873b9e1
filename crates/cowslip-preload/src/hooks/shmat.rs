//! `shmat`: a shared segment at an address that the program names replaces other mappings, or lies where nothing is
//! mapped.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_void};

use cowslip::Arena;
use cowslip::units::{VirtRange, page_size_bytes, round_up};
use cowslip_sys::process::BlockedSignals;
use cowslip_sys::{Errno, memory, passthrough};

use crate::arena::ranges::{FAILED, replace_mapping};
use crate::arena::registry::parts;
use crate::rt::guard::guarded;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    // SAFETY: the program's own call.
    let kernel = || unsafe { passthrough::shmat(id, addr, flags) };
    let mut blocked = BlockedSignals::enter();
    let Some(range) = named(id, addr as usize, flags) else {
        drop(blocked);
        return kernel();
    };
    if flags & libc::SHM_REMAP == 0 {
        // What is free in an arena is free to the program. The kernel refuses the rest.
        let vacate =
            |(arena, part): (Option<&Arena>, _)| arena.map(|arena| arena.raw().vacate(part));
        guarded(|| parts(range).for_each(|part| _ = vacate(part)), || ());
        drop(blocked);
        return kernel();
    }
    let mut refused = Errno::INVAL;
    let mut map = || {
        let at = kernel();
        if at == FAILED {
            refused = cowslip_sys::errno::current();
        }
        Some(at).filter(|&at| at != FAILED)
    };
    let mapped = guarded(|| replace_mapping(range, &mut map), || None);
    if mapped.is_none() {
        blocked.set_errno(refused);
    }
    mapped.unwrap_or(FAILED)
}

/// The range of the segment, if the program named an address and the range meets an arena.
fn named(id: c_int, addr: usize, flags: c_int) -> Option<VirtRange> {
    let page = page_size_bytes();
    let start = if flags & libc::SHM_RND != 0 { addr - addr % page } else { addr };
    if start == 0 || !start.is_multiple_of(page) {
        return None;
    }
    let len = round_up(memory::segment_bytes(id).ok()?, page)?;
    crate::arena::registry::arena_part(start, len)?;
    Some(VirtRange::new(start, len))
}

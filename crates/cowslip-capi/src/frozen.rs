//! Views of an arena at one instant.

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use cowslip::Frozen;
use cowslip::units::VirtRange;

use crate::arena::{cowslip_arena, hand_over};
use crate::boundary::{guard, shared};
use crate::error::{Failure, cowslip_error, cowslip_status};
use crate::handles::{self, contained};

/// What an arena held at one instant.
#[derive(Debug)]
pub struct cowslip_frozen {
    pub(crate) frozen: Frozen,
    pub(crate) arena: VirtRange,
}

/// Freezes the arena: its memory goes on under the same addresses, its content now is in the view until that is freed.
/// Up to 64 views of it may live, each of its own instant. Where there may be no more (and, without userfaultfd or on
/// hugetlb pages, while there is one, or a thaw goes on) it waits, up to `timeout_ns`, and is COWSLIP_BUSY then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_freeze(
    arena: *const cowslip_arena,
    timeout_ns: u64,
    frozen: *mut *mut cowslip_frozen,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let freeze = || {
        if frozen.is_null() {
            return Err(Failure::Null("frozen"));
        }
        // SAFETY: C's contract.
        let arena = unsafe { shared(arena, "arena") }?.arena();
        let view = arena.freeze_timeout(Duration::from_nanos(timeout_ns))?;
        let view = cowslip_frozen { frozen: view, arena: arena.range() };
        // SAFETY: C's contract.
        unsafe { hand_over(frozen, "frozen", view) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, freeze) }
}

/// Does now, while other threads go on, what a freeze beside earlier views would begin with: the freeze after it takes less.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_prepare_freeze(
    arena: *const cowslip_arena,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    // SAFETY: C's contract.
    let prepare = || Ok(unsafe { shared(arena, "arena") }?.arena().prepare_freeze()?);
    // SAFETY: C's contract.
    unsafe { guard(error, prepare) }
}

/// Restores the arena's content of the freeze of `frozen`. All views stay. Memory allocated since then reads as zeroes, memory
/// given back since then stays given back. No thread may use the arena's memory until this returns. On an error all is
/// as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_roll_back(
    arena: *const cowslip_arena,
    frozen: *const cowslip_frozen,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let roll_back = || {
        // SAFETY: C's contract.
        let (arena, view) = unsafe { (shared(arena, "arena")?, shared(frozen, "frozen")?) };
        // SAFETY: C's contract: no thread uses the memory.
        Ok(unsafe { arena.arena().roll_back(&view.frozen) }?)
    };
    // SAFETY: C's contract.
    unsafe { guard(error, roll_back) }
}

/// Where the view shows what the arena has at `address`, to be read only, up to the end of what was allocated there;
/// NULL if `address` is not the arena's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_frozen_view(
    frozen: *const cowslip_frozen,
    address: *const c_void,
) -> *const c_void {
    contained(ptr::null(), || {
        // SAFETY: C's contract.
        let Ok(view) = (unsafe { shared(frozen, "frozen") }) else { return ptr::null() };
        if !view.arena.contains(address as usize) {
            return ptr::null();
        }
        view.frozen.view_address(address as usize) as *const c_void
    })
}

/// Ends the view; the arena thaws in the background.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_frozen_free(frozen: *mut cowslip_frozen) {
    // SAFETY: C's contract.
    unsafe { handles::free(frozen) };
}

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

/// The content of an arena at one instant.
#[derive(Debug)]
pub struct cowslip_frozen {
    pub(crate) frozen: Frozen,
    pub(crate) arena: VirtRange,
}

/// Freezes the arena: its memory stays usable at the same addresses, and the view has its present content until the
/// view is freed. Up to 64 views of an arena may exist, each of its own instant. While there may be no more (and,
/// without userfaultfd or on hugetlb pages, during another view or a thaw) it waits, up to `timeout_ns`, and then
/// returns COWSLIP_BUSY.
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

/// Does the first part of a freeze beside earlier views now, while other threads run: the next freeze takes less time.
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

/// Restores the arena's content from the freeze of `frozen`. All views stay. Memory allocated since then reads as
/// zeroes; memory given back since then stays given back. No thread may use the arena's memory until this returns. If
/// it fails, nothing has changed.
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

/// The place where the view shows the arena's memory at `address`, for reading only, up to the end of the allocation
/// there; NULL if `address` is not the arena's.
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

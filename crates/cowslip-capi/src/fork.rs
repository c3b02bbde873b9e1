//! Forks that take arenas along.

use std::ffi::c_int;

use cowslip::{Arena, Fork};

use crate::arena::cowslip_arena;
use crate::boundary::{Answer, array, guard, hand_out, shared};
use crate::error::{Failure, cowslip_error, cowslip_status};

/// fork(2) with these arenas: the child has their content at this instant; other arenas are missing in it. `*pid` is 0
/// in the child. In the child of a program with threads only async-signal-safe functions may be called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_fork(
    arenas: *const *const cowslip_arena,
    count: usize,
    pid: *mut c_int,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let fork = || {
        if pid.is_null() {
            return Err(Failure::Null("pid"));
        }
        // SAFETY: C's contract.
        let given = unsafe { array(arenas, count, "arenas") }?;
        // SAFETY: C's contract.
        let arena = |arena: &*const cowslip_arena| unsafe { shared(*arena, "an arena") };
        let arenas: Vec<&Arena> = given
            .iter()
            .map(|handle| arena(handle).map(cowslip_arena::arena))
            .collect::<Answer<_>>()?;
        // SAFETY: C's contract: the child keeps to the calls that it may make. Here it only writes a number.
        let forked = unsafe { cowslip::fork(&arenas) }?;
        let number = if let Fork::Parent(pid) = forked { pid } else { 0 };
        if number == 0 {
            // The vector is the allocator's, and another thread may have held the allocator's lock.
            std::mem::forget(arenas);
        }
        // SAFETY: C's contract.
        unsafe { hand_out(pid, "pid", number) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, fork) }
}

/// Has every later fork() of this process take the arena along, including forks in libraries. A freeze that fails then
/// leaves the arena's memory to the kernel.
///
/// The library must not be unloaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_at_fork(
    arena: *const cowslip_arena,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    // SAFETY: C's contract.
    let install = || Ok(unsafe { shared(arena, "arena") }?.arena().install_at_fork()?);
    // SAFETY: C's contract.
    unsafe { guard(error, install) }
}

//! The program's own page-fault handler (`userfaultfd(2)`): it must see the faults of its memory, and an arena has
//! faults of its own.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_ulong};

use cowslip::raw::Departure;
use cowslip_sys::{passthrough, user_memory};

use crate::arena::detach;

const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
/// Moves pages that are private and anonymous.
const UFFDIO_MOVE: c_ulong = 0xc028_aa05;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // Requests are 32 bits; a caller that passes one as an int may have its sign extended.
    if request as u32 == UFFDIO_REGISTER as u32 {
        before_register(argument);
    } else if request as u32 == UFFDIO_MOVE as u32 {
        before_move(argument);
    }
    // SAFETY: the program's own call.
    unsafe { passthrough::ioctl(fd, request, argument) }
}

#[cold]
#[inline(never)]
fn before_register(argument: usize) {
    let Some([start, len]) = user_memory::read::<[u64; 2]>(argument) else { return };
    detach::before_use(start as usize, len as usize, Departure::Userfaultfd);
}

#[cold]
#[inline(never)]
fn before_move(argument: usize) {
    let Some([_, from, len]) = user_memory::read::<[u64; 3]>(argument) else { return };
    detach::before_use(from as usize, len as usize, Departure::Userfaultfd);
}

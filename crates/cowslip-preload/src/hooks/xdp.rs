//! `setsockopt` of packet memory (`AF_XDP`): packets are received into it and sent from it. It is pinned, and counted
//! nowhere.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_uint, c_void};

use cowslip::raw::Departure;
use cowslip_sys::{process, user_memory};

use crate::arena::detach;
use crate::rt::next_symbol::interpose;

const SOL_XDP: c_int = 283;
const XDP_UMEM_REG: c_int = 4;

fn is_registration(level: c_int, name: c_int) -> bool {
    level == SOL_XDP && name == XDP_UMEM_REG
}

fn before_registration(value: usize) {
    let Some([start, len]) = user_memory::read::<[u64; 2]>(value) else { return };
    process::uncancelled(|| detach::before_use(start as usize, len as usize, Departure::Ring));
}

/// The same for `syscall(2)`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_option(level: c_int, name: c_int, value: usize) {
    if is_registration(level, name) {
        before_registration(value);
    }
}

interpose! {
    [setsockopt](fd: c_int, level: c_int, name: c_int, value: *const c_void, len: c_uint) -> c_int, if is_registration(level, name) => before_registration(value as usize);
}

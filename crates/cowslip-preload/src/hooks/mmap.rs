//! `mmap`.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_void};

use crate::arena::mapping::map;
use crate::hooks::atfork;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    atfork::register();
    // SAFETY: the program's own call.
    unsafe { map(addr, len, prot, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the same function where long is 64 bits.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

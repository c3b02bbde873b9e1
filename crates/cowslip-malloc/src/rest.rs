//! The program's rest: the preload library's service thread returns freed memory then, and is told when threads allocate
//! that it should be there.
//!
//! jemalloc returns memory only in a thread that allocates, and the threads of a program that waits do not.
//!
//! # Safety
//! Names and types of jemalloc's values are those of its version that is linked in.

use core::ffi::c_void;
use core::mem::transmute;
use core::ptr;

use tikv_jemalloc_sys as jemalloc;

use crate::{control, forks, preload, threads};

/// Called by the preload library's thread while the program rests. It stays unknown to jemalloc: a fork that comes next
/// finds no trace of it, and one in progress keeps it out.
#[unsafe(no_mangle)]
extern "C" fn cowslip_at_rest() {
    if control::is_jemalloc() {
        forks::unless_forking(|| {
            control::purge();
            threads::forget();
        });
    }
}

/// Bytes that a thread allocates between two calls.
const INTERVAL_BYTES: u64 = 1 << 20;

/// `user_hook_object_t`
#[repr(C)]
struct Hook {
    call: extern "C" fn(bool, u64, u64),
    interval_bytes: u64,
    is_for_allocations_only: bool,
}

extern "C" fn allocates(_: bool, _: u64, _: u64) {
    let allocates = preload::ALLOCATES.get();
    if !allocates.is_null() {
        // SAFETY: the preload library's symbol has this type. No lock of jemalloc's is held, and it may be called.
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn()>(allocates)() };
    }
}

/// Called once jemalloc is ready.
pub(crate) fn begin() {
    let mut hook =
        Hook { call: allocates, interval_bytes: INTERVAL_BYTES, is_for_allocations_only: true };
    let (name, none) = (c"experimental.hooks.thread_event", ptr::null_mut());
    // SAFETY: see the module; jemalloc copies the hook.
    unsafe {
        let (value, size) = ((&raw mut hook).cast(), size_of::<Hook>());
        jemalloc::mallctl(name.as_ptr(), none, ptr::null_mut(), value, size);
    }
}

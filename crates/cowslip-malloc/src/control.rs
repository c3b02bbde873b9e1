//! jemalloc's state, and orders to it.
//!
//! # Safety
//! Names of jemalloc's values are those of its version that is linked in.

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tikv_jemalloc_sys as jemalloc;

static IS_JEMALLOC: AtomicBool = AtomicBool::new(false);

/// Returns true once jemalloc serves the requests.
#[inline]
pub(crate) fn is_jemalloc() -> bool {
    IS_JEMALLOC.load(Relaxed)
}

/// Has jemalloc serve all requests from now on.
pub(crate) fn set_jemalloc() {
    IS_JEMALLOC.store(true, Relaxed);
}

/// Acts on a name of jemalloc's that neither takes nor returns a value.
pub(crate) fn act(name: &CStr) {
    // SAFETY: see the module.
    unsafe {
        jemalloc::mallctl(name.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0);
    }
}

/// Returns freed memory of all arenas to the kernel.
pub(crate) fn purge() {
    act(c"arena.4096.purge");
}

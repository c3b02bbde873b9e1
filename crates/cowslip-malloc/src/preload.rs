//! The preload library's functions, where there is one.
//!
//! They are looked up at the start: a fork may come in a child of a system call, where the dynamic linker's lock may be
//! held by a thread that does not exist there.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Returns true if the program has one thread, beside the preload library's.
pub(crate) static IS_SOLE_THREAD: Function = Function::new();
/// Has memory begin on huge pages.
pub(crate) static PREFER_HUGE: Function = Function::new();
/// Is told that the program allocates.
pub(crate) static ALLOCATES: Function = Function::new();

/// One of its functions.
pub(crate) struct Function(AtomicPtr<c_void>);

impl Function {
    const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Null without that library.
    pub(crate) fn get(&self) -> *mut c_void {
        self.0.load(Relaxed)
    }

    fn look_up(&self, name: &CStr) {
        // SAFETY: a lookup by name.
        self.0.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }, Relaxed);
    }
}

#[unsafe(link_section = ".init_array")]
#[used]
static INIT: extern "C" fn() = {
    extern "C" fn init() {
        IS_SOLE_THREAD.look_up(c"cowslip_is_sole_thread");
        PREFER_HUGE.look_up(c"cowslip_prefer_huge");
        ALLOCATES.look_up(c"cowslip_allocates");
    }
    init
};

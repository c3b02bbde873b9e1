//! libc's functions by their names, past the `dlsym` of this library.

use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

#[cfg(target_arch = "x86_64")]
const VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const VERSION: &CStr = c"GLIBC_2.17";

type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// libc's `dlsym`.
pub(crate) fn dlsym_of_libc() -> *mut c_void {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut real = REAL.load(Relaxed);
    if real.is_null() {
        // SAFETY: a lookup by name; every glibc has it in this version.
        real = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), VERSION.as_ptr()) };
        REAL.store(real, Relaxed);
    }
    real
}

/// The answer of libc's `dlsym` if this library asks.
pub(crate) fn of_libc(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: libc's function has this type; a lookup by name.
    unsafe { core::mem::transmute::<*mut c_void, Lookup>(dlsym_of_libc())(handle, name.as_ptr()) }
}

/// A function of the library that comes next, or of the first one.
pub(crate) struct Next {
    name: &'static CStr,
    is_first: bool,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, is_first: false, found: AtomicPtr::new(ptr::null_mut()) }
    }

    pub(crate) const fn first(name: &'static CStr) -> Self {
        Self { is_first: true, ..Self::new(name) }
    }

    /// Its address. There is one: glibc has them all.
    pub(crate) fn get(&self) -> *mut c_void {
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            let from = if self.is_first { libc::RTLD_DEFAULT } else { libc::RTLD_NEXT };
            found = of_libc(from, self.name);
            self.found.store(found, Relaxed);
        }
        found
    }
}

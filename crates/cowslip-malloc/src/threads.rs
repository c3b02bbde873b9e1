//! The end of threads.
//!
//! jemalloc has a list of its threads, linked through their own storage. libc has a thread removed from it when the
//! thread ends (`pthread_key_create(3)`), but not when it ends by a system call: its storage goes with its stack, and
//! the next walk over the list crashes.
//!
//! # Safety
//! Names and types are those of jemalloc's `tsd.c`, of the version that is linked in.

use core::ffi::c_void;

unsafe extern "C" {
    #[link_name = "_rjem_je_tsd_booted"]
    static IS_READY: bool;
    #[link_name = "_rjem_je_tsd_tsd"]
    static KEY: libc::pthread_key_t;
    #[link_name = "_rjem_je_tsd_cleanup"]
    fn clean_up(thread: *mut c_void);
}

/// Called by the preload library, before the calling thread ends past libc.
#[unsafe(no_mangle)]
extern "C" fn cowslip_thread_ends() {
    forget();
}

/// Has jemalloc forget the calling thread.
pub(crate) fn forget() {
    // SAFETY: jemalloc sets both when it makes itself ready, before any thread can use it. The key's value is the
    // thread's storage, and the function is the one that libc would call with it.
    unsafe {
        if !IS_READY {
            return;
        }
        let thread = libc::pthread_getspecific(KEY);
        if !thread.is_null() {
            clean_up(thread);
        }
    }
}

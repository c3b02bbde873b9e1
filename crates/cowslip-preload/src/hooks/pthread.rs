//! `pthread_create`, and the functions by which the bundled malloc learns of the program's threads.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_void};

use cowslip_sys::Errno;
use cowslip_sys::process::BlockedSignals;

use crate::arena::registry::arenas;
use crate::arena::{ownership, service};
use crate::hooks::{futex, heap};
#[cfg(target_arch = "x86_64")]
use crate::rt::config::config;
#[cfg(target_arch = "x86_64")]
use crate::rt::fork_state::is_own_process;
use crate::rt::next_symbol::next_symbol;

next_symbol! { PTHREAD_CREATE = c"pthread_create" }

/// Returns true if this is the program's only thread, as far as the kernel knows. Ours is not counted, and does not
/// allocate. The bundled malloc calls this before a fork.
#[unsafe(no_mangle)]
extern "C" fn cowslip_is_sole_thread() -> bool {
    service::is_sole()
}

/// Starts the service thread with a program's first thread, so that its first fork need not wait for it, and so that a
/// daemon which starts threads makes inherited memory live. The place is safe: a caller that starts a thread allocates.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void,
    ) -> c_int;
    // SAFETY: libc's symbol of that name has this type.
    let real = unsafe { core::mem::transmute::<*mut c_void, Create>(PTHREAD_CREATE.get()) };
    futex::before_thread(attributes);
    // SAFETY: the program's own call.
    let call = || unsafe { real(thread, attributes, start, argument) };
    let answer = match call() {
        libc::EAGAIN if service::gives_way(Errno::AGAIN) => call(),
        answer => answer,
    };
    if answer == 0 && arenas().next().is_some() {
        let _blocked = BlockedSignals::enter();
        ownership::adopt_all();
        service::start_all();
    } else if answer == 0 {
        heap::note_thread();
    }
    answer
}

/// Called before this thread ends by a system call (`exit(2)`). libc does not learn of it, and would have told the
/// bundled malloc, which has the thread in a list. With the last thread the process ends: the list is of no more use,
/// and in a child of `clone(2)` its locks may be held by threads that do not exist there.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_exit() {
    let ends = THREAD_ENDS.known();
    if config().off || ends.is_null() || !is_own_process() || service::is_sole() {
        return;
    }
    // SAFETY: the bundled malloc's function of that name has this type.
    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(ends)() };
}

// A thread that ends must not resolve it: a child forked meanwhile would inherit the dynamic linker's lock, which no
// thread of it releases.
#[cfg(target_arch = "x86_64")]
next_symbol! { THREAD_ENDS = c"cowslip_thread_ends" }

//! The socket at which `cowslip branch` finds this process, from the first branch point on.
//!
//! ```text
//!   none ──first branch point──▶ open ──a child──▶ none, there: the socket is its parent's
//!                                  ├─ exit ──▶ none
//!                                  └─ a filter of system calls ──▶ closed for good
//! ```

use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cowslip::raw::branch;
use cowslip_sys::Errno;

use crate::branch::listener::Listener;
use crate::rt::config::config;
use crate::rt::guard::guarded;
use crate::rt::log::say;

/// The socket of this process, from its first branch point on.
#[unsafe(link_section = "cowslip_fork_data")]
static LISTENER: AtomicPtr<Listener> = AtomicPtr::new(ptr::null_mut());

/// A thread is at a branch point.
#[unsafe(link_section = "cowslip_fork_data")]
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The program filters its system calls: those of a branch point may end it.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// This process is a copy, or forked from one: the name is the program's.
static IS_COPY: AtomicBool = AtomicBool::new(false);

/// Returns true if a thread is at a branch point.
pub(super) fn is_taken() -> bool {
    IS_TAKEN.load(Ordering::Relaxed)
}

/// Sets [`is_taken`] to its value of an instant at which all threads are again.
pub(super) fn set_taken(is_taken: bool) {
    IS_TAKEN.store(is_taken, Ordering::Relaxed);
}

/// In a forked child: the socket is the parent's.
pub(crate) fn begin_child(shares_descriptors: bool) {
    IS_TAKEN.store(false, Ordering::Relaxed);
    let listener = LISTENER.swap(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: null, or a listener that is never freed.
    if let Some(listener) = unsafe { listener.as_ref() } {
        listener.leave(shares_descriptors);
    }
}

/// Called when the program calls `exit`.
pub(crate) fn end() {
    let listener = LISTENER.swap(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: null, or a listener that is never freed.
    if let Some(listener) = unsafe { listener.as_ref() } {
        listener.remove();
        listener.leave(false);
    }
}

/// Closes the socket for good: the program can no longer be branched.
pub(crate) fn close() {
    IS_CLOSED.store(true, Ordering::Relaxed);
    end();
}

/// Marks this process as one of the copies.
pub(crate) fn begin_copy() {
    IS_COPY.store(true, Ordering::Relaxed);
}

/// Calls `act` with the listener of this process, one thread at a time.
///
/// # Safety
/// `name` is a C string or null.
pub(crate) unsafe fn with_listener<T>(
    name: *const c_char,
    act: impl FnOnce(&Listener) -> T,
) -> Result<T, Errno> {
    if config().off {
        return Err(Errno::NOSYS);
    }
    if IS_CLOSED.load(Ordering::Relaxed) {
        return Err(Errno::PERM);
    }
    // SAFETY: the caller promises it.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let name = name.map(|name| name.to_str().map_err(|_| Errno::INVAL)).transpose()?;
    if name.is_some_and(|name| !branch::is_name(name)) {
        return Err(Errno::INVAL);
    }
    if IS_TAKEN.swap(true, Ordering::Acquire) {
        return Err(Errno::BUSY);
    }
    let answer = guarded(|| listen(name).map(act), || Err(Errno::NOTRECOVERABLE));
    IS_TAKEN.store(false, Ordering::Release);
    answer
}

/// Returns the listener of this process and creates it at the first call.
fn listen(name: Option<&str>) -> Result<&'static Listener, Errno> {
    let known = LISTENER.load(Ordering::Relaxed);
    // SAFETY: null, or a listener that is never freed.
    if let Some(listener) = unsafe { known.as_ref() } {
        return Ok(listener);
    }
    let name = name.filter(|_| !IS_COPY.load(Ordering::Relaxed));
    let listener = Listener::open(name).inspect_err(|errno| {
        say!("no branch point: no socket could be made: {}", cowslip_sys::reason(*errno));
    })?;
    say!("may be branched, at {}", listener.path().display());
    let listener = Box::leak(Box::new(listener));
    LISTENER.store(listener, Ordering::Relaxed);
    Ok(listener)
}

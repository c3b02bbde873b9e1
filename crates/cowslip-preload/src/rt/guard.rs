//! The failures of this library as the program sees them: a panic ends only the call, an error is an errno.

use cowslip_sys::Errno;

use crate::rt::log::say;

/// Ends the call, not the process, if this library panics: its bugs must not cost the program its memory.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T, instead: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(answer) => answer,
        Err(_) => {
            say!("a bug: a panic in the preload library");
            instead()
        }
    }
}

/// The errno that the program sees.
pub(crate) fn errno_of(error: &cowslip::Error) -> Errno {
    Errno::from_raw_os_error(error.errno().unwrap_or(libc::EAGAIN))
}

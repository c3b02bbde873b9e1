//! Errors in C.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use cowslip::ErrorKind;

/// The result of a call. Numbers are never reused for another meaning.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum cowslip_status {
    /// Done.
    COWSLIP_OK = 0,
    /// The request makes no sense, or a required pointer is NULL.
    COWSLIP_USAGE = 1,
    /// This kernel cannot do it.
    COWSLIP_UNSUPPORTED = 2,
    /// This process is not allowed to do it.
    COWSLIP_DENIED = 3,
    /// The process in question is gone.
    COWSLIP_VANISHED = 4,
    /// There is not enough memory or address space.
    COWSLIP_OUT_OF_MEMORY = 5,
    /// A resource of the call is still in use, or a callback stopped the call.
    COWSLIP_BUSY = 6,
    /// The received or read data is damaged, or of another kind.
    COWSLIP_CORRUPT = 7,
    /// A file cannot be read or written.
    COWSLIP_FILE = 8,
    /// The kernel refused for another reason.
    COWSLIP_SYSTEM = 9,
    /// A defect of the library: please report the text.
    COWSLIP_BUG = 10,
}

use cowslip_status::*;

/// The reason why a call failed.
#[derive(Debug)]
pub struct cowslip_error {
    text: CString,
    advice: Option<CString>,
    errno: c_int,
}

/// A failure on its way to C.
#[derive(Debug)]
pub(crate) enum Failure {
    Engine(cowslip::Error),
    /// The name of a required pointer that is NULL.
    Null(&'static str),
    Usage(String),
    Panic(String),
}

impl From<cowslip::Error> for Failure {
    fn from(error: cowslip::Error) -> Self {
        Self::Engine(error)
    }
}

impl Failure {
    pub(crate) fn status(&self) -> cowslip_status {
        let Self::Engine(error) = self else {
            return if matches!(self, Self::Panic(_)) { COWSLIP_BUG } else { COWSLIP_USAGE };
        };
        match error.kind() {
            ErrorKind::Usage => COWSLIP_USAGE,
            ErrorKind::Unsupported => COWSLIP_UNSUPPORTED,
            ErrorKind::Denied => COWSLIP_DENIED,
            ErrorKind::Vanished => COWSLIP_VANISHED,
            ErrorKind::OutOfMemory => COWSLIP_OUT_OF_MEMORY,
            ErrorKind::Busy => COWSLIP_BUSY,
            ErrorKind::Corrupt => COWSLIP_CORRUPT,
            ErrorKind::File => COWSLIP_FILE,
            _ => COWSLIP_SYSTEM,
        }
    }

    pub(crate) fn into_error(self) -> cowslip_error {
        let said = match self {
            Self::Engine(error) => {
                let (clause, advice) = error.told();
                let errno = error.errno().unwrap_or(0);
                return cowslip_error { text: text(&clause), advice: advice.map(text), errno };
            }
            Self::Null(name) => format!("{name} is NULL"),
            Self::Usage(what) => what,
            Self::Panic(what) => format!("there is a defect of Cowslip: {what}"),
        };
        cowslip_error { text: text(&said), advice: None, errno: 0 }
    }
}

/// Converts a text for C: up to a NUL, which no text of ours has.
pub(crate) fn text(said: &str) -> CString {
    let end = said.find('\0').unwrap_or(said.len());
    CString::new(&said[..end]).unwrap_or_default()
}

/// A line that says which operation failed, on which object, and why, without the advice. It lives as long as the
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_error_text(error: *const cowslip_error) -> *const c_char {
    // SAFETY: C's contract.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.text.as_ptr())
}

/// A remedy, or NULL if none is known. It lives as long as the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_error_advice(error: *const cowslip_error) -> *const c_char {
    // SAFETY: C's contract.
    let advice = unsafe { error.as_ref() }.and_then(|error| error.advice.as_ref());
    advice.map_or(ptr::null(), |advice| advice.as_ptr())
}

/// The kernel's error number (errno.h), or 0 if the kernel did not refuse.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_error_errno(error: *const cowslip_error) -> c_int {
    // SAFETY: C's contract.
    unsafe { error.as_ref() }.map_or(0, |error| error.errno)
}

/// Frees an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_error_free(error: *mut cowslip_error) {
    // SAFETY: C's contract.
    unsafe { crate::handles::free(error) };
}

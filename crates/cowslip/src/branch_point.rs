#![allow(unsafe_code)]
//! A place where a warm program is ready to be copied by `cowslip branch`.
//!
//! The preload library of `cowslip run` has the function; a program without it has none, and goes on.
//!
//! # Safety
//! The preload library's functions have the types that `docs/templates.md` says.

use std::env;
use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::io::{self, Write};
use std::mem;
use std::ptr;
use std::time::Duration;

use cowslip_sys::error::{During, ErrorKind, Result};
use cowslip_sys::{Errno, dynamic, process};

use crate::Error;

const OPERATION: &str = "be ready to be branched";

/// Which copy of a program this process is: see [`branch_point`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BranchCopy {
    /// Its number, from 0 (`COWSLIP_BRANCH`).
    pub index: u32,
    /// The number of copies made at once (`COWSLIP_BRANCHES`).
    pub count: u32,
    /// Its argument on the command line, if it has one (`COWSLIP_BRANCH_ARG`).
    pub argument: Option<OsString>,
}

/// Lets `cowslip branch` copy this process, which runs under `cowslip run`, until `timeout` has passed (`None`: until
/// it is told to go on; zero: only if a `cowslip branch` already waits). In a copy, returns its number and argument. In
/// the program itself, returns `None` once the time is up, `cowslip branch --release` says so, or a signal handler ran.
///
/// The program is found by its process id or by `name`, letters, digits, `.`, `_` and `-`, which need not be unique.
///
/// # Errors
/// [`ErrorKind::Unsupported`] without `cowslip run`; [`ErrorKind::Busy`] while another thread is in this call; the kernel's if
/// there can be no socket.
///
/// # Safety
/// A copy is like the child of `fork(2)`: only the calling thread lives on in it, and other threads' locks stay locked.
pub unsafe fn branch_point(
    name: Option<&str>,
    timeout: Option<Duration>,
) -> Result<Option<BranchCopy>> {
    type BranchPoint = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    let Some(found) = dynamic::other_than(ptr::null(), c"cowslip_branch_point") else {
        return Err(not_preloaded());
    };
    let name = name.map(CString::new).transpose();
    let name = name.map_err(|_| Error::new(ErrorKind::Usage, "a name with a NUL in it"))?;
    let milliseconds = timeout.map_or(-1, |time| time.as_millis().try_into().unwrap_or(c_int::MAX));
    // Buffered output is the program's, not the copies'.
    let _ = io::stdout().flush();
    // SAFETY: the function of that name has this type, the name is NULL or ends with a NUL, and the caller promised
    // what a copy needs.
    let answer = unsafe {
        mem::transmute::<*const c_void, BranchPoint>(found)(
            name.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            milliseconds,
        )
    };
    if let Ok(index) = u32::try_from(answer) {
        let count = env::var("COWSLIP_BRANCHES").ok().and_then(|count| count.parse().ok());
        let argument = env::var_os("COWSLIP_BRANCH_ARG");
        return Ok(Some(BranchCopy { index, count: count.unwrap_or(1), argument }));
    }
    match process::current_errno() {
        Errno::AGAIN | Errno::CANCELED | Errno::INTR => Ok(None),
        Errno::NOSYS => Err(not_preloaded()),
        Errno::BUSY => Err(Error::new(ErrorKind::Busy, "another thread is at its branch point")),
        errno => Err(errno).during(OPERATION),
    }
}

fn not_preloaded() -> Error {
    Error::new(ErrorKind::Unsupported, OPERATION)
        .because("the library that makes the copies is not in this program")
        .advise("start it with `cowslip run`")
}

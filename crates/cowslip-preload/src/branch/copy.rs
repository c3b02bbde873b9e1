//! The first steps of a copy: it ties its life to its supervisor's, waits for the others, and gets its own streams and
//! environment.
//!
//! # Safety
//! See [`super::point`]. `stdout` and `stdin` are libc's open streams; the environment is an array as `execve(2)` has
//! it.

use core::ffi::c_int;
use std::ffi::CString;
use std::fs::File;
use std::io::{PipeReader, Read};

use cowslip::raw::branch::{Reply, SEED_BYTES};
use cowslip_sys::supervision::{self, Former};
use cowslip_sys::{BorrowedFd, Errno, OwnedFd, process, socket};

use crate::rt::environment;

/// The byte that opens the gate for one copy.
pub(super) const GO: u8 = 1;

const FAILED: i32 = 125;

/// Everything that a copy needs until it runs.
pub(super) struct Birth<'a> {
    pub(super) index: u32,
    pub(super) count: u32,
    pub(super) supervisor: i32,
    pub(super) argument: Option<&'a [u8]>,
    pub(super) variables: &'a [Vec<u8>],
    pub(super) streams: &'a [OwnedFd; 3],
    pub(super) gate: &'a PipeReader,
    pub(super) connection: BorrowedFd<'a>,
    pub(super) former: &'a Former,
}

impl Birth<'_> {
    /// Waits until all copies exist; `false` if making them failed.
    pub(super) fn wait(&self) -> bool {
        let mut byte = [0];
        let mut gate = self.gate;
        matches!(gate.read(&mut byte), Ok(1)) && byte[0] == GO
    }
}

unsafe extern "C" {
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
    fn __fpurge(stream: *mut libc::FILE);
    fn clearerr(stream: *mut libc::FILE);
    fn fflush(stream: *mut libc::FILE) -> c_int;
}

/// Flushes the program's standard output in libc; otherwise each copy would write the buffer too.
pub(super) fn flush_output() {
    // SAFETY: see the module.
    unsafe {
        if !stdout.is_null() {
            fflush(stdout);
        }
    }
}

/// Lets the copy start, or ends it if its supervisor is gone.
pub(super) fn begin(birth: &Birth<'_>) {
    let _ = supervision::lead_group(process::pid());
    if supervision::end_with(birth.supervisor).is_err() || !birth.wait() {
        process::exit_now(FAILED);
    }
    birth.former.restore();
    if supervision::replace_streams(birth.streams).is_err() {
        process::exit_now(FAILED);
    }
    // SAFETY: see the module; no other thread exists that could read it.
    unsafe {
        if !stdin.is_null() {
            __fpurge(stdin);
            clearerr(stdin);
        }
    }
    if set_environment(birth).is_err() {
        process::exit_now(FAILED);
    }
    let running = Reply::Running { copy: birth.index, pid: process::pid() };
    let _ = socket::send(birth.connection, &running.to_bytes(), &[]);
}

/// Does not call libc's `setenv`: a thread that does not exist here may have held its lock.
fn set_environment(birth: &Birth<'_>) -> Result<(), Errno> {
    let mut seed = [0; SEED_BYTES];
    process::fill_random(&mut seed)?;
    let seed: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut entries: Vec<Vec<u8>> = vec![
        format!("COWSLIP_BRANCH={}", birth.index).into_bytes(),
        format!("COWSLIP_BRANCHES={}", birth.count).into_bytes(),
        format!("COWSLIP_BRANCH_SEED={seed}").into_bytes(),
    ];
    entries.extend(birth.variables.iter().cloned());
    let argument = birth.argument;
    entries.extend(argument.map(|text| [b"COWSLIP_BRANCH_ARG=", text].concat()));
    let entries: Vec<CString> =
        entries.into_iter().filter_map(|entry| CString::new(entry).ok()).collect();
    // A copy of a copy has its own argument, or none.
    environment::replace(&entries, &[b"COWSLIP_BRANCH_ARG="]);
    Ok(())
}

/// Called in the supervisor, which must not keep the program's terminal or pipe open.
pub(super) fn close_streams() {
    let open = || File::options().read(true).write(true).open("/dev/null").ok();
    let above = |file: File| supervision::above_streams(OwnedFd::from(file)).ok();
    let files: Option<Vec<OwnedFd>> = (0..3).map(|_| open().and_then(above)).collect();
    if let Some(Ok(files)) = files.map(TryInto::try_into) {
        let _ = supervision::replace_streams(&files);
    }
}

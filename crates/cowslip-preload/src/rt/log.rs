//! `COWSLIP_LOG`: a line for every important event, to a file or to stderr.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

use cowslip_sys::atomic_file::append_in_place;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::{AsFd, OwnedFd};

static TARGET: OnceLock<Option<ReservedFd>> = OnceLock::new();

/// Opens the target of `COWSLIP_LOG`; if a file cannot be opened, stderr is used.
pub(crate) fn open(target: Option<&std::ffi::OsStr>) {
    TARGET.get_or_init(|| {
        let stderr = || std::io::stderr().as_fd().try_clone_to_owned().ok();
        let target = target?;
        let fd = match target.to_str() {
            Some("-") => stderr(),
            _ => append_in_place(Path::new(target)).ok().map(OwnedFd::from).or_else(stderr),
        };
        fd.map(ReservedFd::hold)
    });
}

/// Nothing is written any more.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Closes the log: the program may be about to forbid its system calls.
pub(crate) fn close() {
    IS_CLOSED.store(true, Relaxed);
}

/// Writes one line, in one write.
pub(crate) fn line(message: fmt::Arguments<'_>) {
    if IS_CLOSED.load(Relaxed) {
        return;
    }
    let Some(Some(fd)) = TARGET.get() else { return };
    let mut text = Vec::with_capacity(160);
    let pid = cowslip_sys::process::pid();
    // A Vec takes everything; a log that cannot be written does not concern the program.
    let _ = writeln!(text, "cowslip[{pid}]: {message}");
    let _ = cowslip_sys::process::write_once(fd.as_fd(), &text);
}

/// Logs a line if there is a log.
macro_rules! say {
    ($($part:tt)*) => { $crate::rt::log::line(format_args!($($part)*)) };
}

pub(crate) use say;

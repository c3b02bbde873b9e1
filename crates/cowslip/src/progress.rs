//! The progress of long work, and waits for another process, which the caller may break off.

use std::io;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::units::CHUNK_BYTES;
use cowslip_sys::{AsFd, Errno, process};

/// The progress of long work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes of memory done so far.
    pub done_bytes: u64,
    /// Bytes of memory in total.
    pub total_bytes: u64,
}

/// Receives the progress from time to time, and may break the work off.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Time between two questions to the caller.
const LOOK: Duration = Duration::from_millis(100);

/// A wait until a stream can be read.
pub(crate) type Wait<'a> = &'a mut dyn FnMut(&UnixStream) -> io::Result<()>;

/// Waits at most `silence` until `stream` can be read, and asks the caller now and then whether to go on.
///
/// # Errors
/// `ETIMEDOUT`; [`io::ErrorKind::Interrupted`] if the caller broke it off; any error of the kernel.
pub(crate) fn readable(
    stream: &UnixStream,
    silence: Duration,
    progress: OnProgress<'_>,
) -> io::Result<()> {
    const NOTHING: Progress = Progress { done_bytes: 0, total_bytes: 0 };
    let began = Instant::now();
    let mut ready = [false];
    loop {
        let left = silence.saturating_sub(began.elapsed());
        process::wait_readable(&[stream.as_fd()], &mut ready, Some(left.min(LOOK)))?;
        if ready[0] {
            return Ok(());
        }
        if let ControlFlow::Break(()) = progress(NOTHING) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if left.is_zero() {
            return Err(Errno::TIMEDOUT.into());
        }
    }
}

/// Reports that so many chunks of 2 MiB are done.
///
/// # Errors
/// [`ErrorKind::Busy`] if the caller breaks it off.
pub(crate) fn advance(
    progress: OnProgress<'_>,
    operation: &'static str,
    done: usize,
    total: usize,
) -> Result<()> {
    let [done_bytes, total_bytes] = [done, total].map(|chunks| (chunks * CHUNK_BYTES) as u64);
    tell(progress, operation, Progress { done_bytes, total_bytes })
}

/// Reports progress, like [`advance`].
pub(crate) fn tell(progress: OnProgress<'_>, operation: &'static str, now: Progress) -> Result<()> {
    match progress(now) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(broken_off(operation)),
    }
}

/// The error of a wait that the caller broke off.
pub(crate) fn broken_off(operation: &'static str) -> Error {
    Error::new(ErrorKind::Busy, operation).because("it was broken off")
}

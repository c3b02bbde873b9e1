//! Ctrl-C ends the run, not what was finished before it.

use std::io::{self, PipeReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip::sys::{AsFd, BorrowedFd};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Set by SIGINT and SIGTERM, which no longer end the process.
pub(super) struct Signals {
    stop: Arc<AtomicBool>,
    woken: PipeReader,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let stop = Arc::default();
        let (woken, wake) = io::pipe()?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self { stop, woken })
    }

    /// Whether to end.
    pub(super) fn stops(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Readable from the first signal on.
    pub(super) fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

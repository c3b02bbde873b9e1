//! The signals that end this command, passed on to the copies instead.

use std::io::{self, PipeReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cowslip_sys::{AsFd, BorrowedFd};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};

/// Signals that no longer end the process.
pub(super) struct Signals {
    last: Arc<AtomicUsize>,
    woken: PipeReader,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let (woken, wake) = io::pipe()?;
        let last = Arc::default();
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            flag::register_usize(signal, Arc::clone(&last), signal as usize)?;
            low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self { last, woken })
    }

    /// A descriptor that can be read once a signal came.
    pub(super) fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// The last signal that came since the previous call.
    pub(super) fn take(&mut self) -> Option<i32> {
        match self.last.swap(0, Relaxed) {
            0 => None,
            signal => {
                let _ = self.woken.read(&mut [0; 64]);
                Some(signal as i32)
            }
        }
    }
}

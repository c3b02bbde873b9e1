//! Signals that end a recording.

use std::io::{self, PipeReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cowslip::sys::{AsFd, BorrowedFd, process};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};

/// Set by SIGINT and SIGTERM, which no longer end the process, and by SIGUSR2.
#[derive(Debug)]
pub(super) struct Signals {
    stop: Arc<AtomicBool>,
    trigger: Arc<AtomicBool>,
    woken: PipeReader,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let (stop, trigger) = (Arc::default(), Arc::default());
        let (woken, wake) = io::pipe()?;
        for (signal, flag) in [(SIGINT, &stop), (SIGTERM, &stop), (SIGUSR2, &trigger)] {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self { stop, trigger, woken })
    }

    /// Whether to end.
    pub(super) fn stops(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Whether SIGUSR2 came.
    pub(super) fn triggers(&self) -> bool {
        self.trigger.load(Relaxed)
    }

    /// Can be read once a signal came.
    pub(super) fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Waits that long, or until a signal comes.
    pub(super) fn wait(&mut self, time: Duration) -> io::Result<()> {
        let mut ready = [false];
        process::wait_readable(&[self.woken.as_fd()], &mut ready, Some(time))?;
        if ready[0] {
            let _ = self.woken.read(&mut [0; 64])?;
        }
        Ok(())
    }
}

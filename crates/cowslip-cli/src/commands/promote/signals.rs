//! Signals: what ends it, what has it read its configuration again, and waiting that they cut short.

use std::io::{self, PipeReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cowslip::sys::{AsFd, BorrowedFd, process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set by SIGINT and SIGTERM, which no longer end the process, and by SIGHUP.
#[derive(Debug)]
pub(super) struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    woken: PipeReader,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let (stop, reload) = (Arc::default(), Arc::default());
        let (woken, wake) = io::pipe()?;
        for (signal, flag) in [(SIGINT, &stop), (SIGTERM, &stop), (SIGHUP, &reload)] {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self { stop, reload, woken })
    }

    /// Whether to end.
    pub(super) fn stops(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Whether SIGHUP came since this was last asked.
    pub(super) fn takes_reload(&self) -> bool {
        self.reload.swap(false, Relaxed)
    }

    /// Waits that long, or until a signal comes.
    pub(super) fn wait(&mut self, time: Duration) -> io::Result<()> {
        self.wait_or(time, &[]).map(drop)
    }

    /// Waits that long, or until a signal comes or something can be read: whether it can.
    pub(super) fn wait_or(&mut self, time: Duration, input: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let mut all = vec![self.woken.as_fd()];
        all.extend(input);
        let mut ready = vec![false; all.len()];
        process::wait_readable(&all, &mut ready, Some(time))?;
        if ready[0] {
            let _ = self.woken.read(&mut [0; 64])?;
        }
        Ok(ready[1..].contains(&true))
    }
}

//! Signals: what ends a command, what asks it for something, and waiting that they cut short.

use std::io::{self, PipeReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cowslip::sys::{AsFd, BorrowedFd, process};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Set by SIGINT and SIGTERM, which no longer end the process, and by a signal that asks for something.
#[derive(Debug)]
pub(crate) struct Signals {
    stop: Arc<AtomicBool>,
    request: Arc<AtomicBool>,
    woken: PipeReader,
}

impl Signals {
    /// Listens to those that end a command.
    pub(crate) fn listen() -> io::Result<Self> {
        Self::listen_to(&[])
    }

    /// Listens to `request` as well.
    pub(crate) fn listen_with(request: i32) -> io::Result<Self> {
        Self::listen_to(&[request])
    }

    fn listen_to(requests: &[i32]) -> io::Result<Self> {
        let (stop, request) = (Arc::default(), Arc::default());
        let (woken, wake) = io::pipe()?;
        let ends = [SIGINT, SIGTERM].iter().map(|signal| (*signal, &stop));
        for (signal, flag) in ends.chain(requests.iter().map(|signal| (*signal, &request))) {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self { stop, request, woken })
    }

    /// Whether to end.
    pub(crate) fn stops(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Whether the signal that asks for something came since this was last asked.
    pub(crate) fn takes_request(&self) -> bool {
        self.request.swap(false, Relaxed)
    }

    /// Can be read once a signal came.
    pub(crate) fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Waits that long, or until a signal comes.
    pub(crate) fn wait(&mut self, time: Duration) -> io::Result<()> {
        self.wait_or(time, &[]).map(drop)
    }

    /// Waits that long, or until a signal comes or something can be read: whether it can.
    pub(crate) fn wait_or(&mut self, time: Duration, input: &[BorrowedFd<'_>]) -> io::Result<bool> {
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

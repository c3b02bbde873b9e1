//! Signals: they end a command, trigger something, and cut waits short.

use std::ffi::c_int;
use std::io::{self, PipeReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cowslip_sys::{AsFd, BorrowedFd, process, procfs};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A flag for work that polls it: set by SIGINT, SIGTERM and SIGHUP, which no longer end the process. An ignored SIGHUP
/// stays ignored, see nohup(1).
pub(super) fn interrupt() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::default();
    for signal in [SIGINT, SIGTERM].into_iter().chain(unless_ignored(SIGHUP)) {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// `signal`, unless this process was started so that it ignores it.
pub(super) fn unless_ignored(signal: c_int) -> Option<c_int> {
    (!procfs::own::ignores(signal)).then_some(signal)
}

/// Signals for work that waits: woken by SIGINT and SIGTERM, which no longer end the process, and by a trigger.
#[derive(Debug)]
pub(super) struct Signals {
    stop: Arc<AtomicBool>,
    trigger: Arc<AtomicBool>,
    woken: PipeReader,
}

impl Signals {
    /// Listens to SIGINT and SIGTERM, and to the trigger's signal, if there is one.
    pub(super) fn listen(trigger: Option<c_int>) -> io::Result<Self> {
        Self::listen_to([SIGINT, SIGTERM], trigger)
    }

    /// Like `listen`, but signals that this process' caller ignores stay ignored, also in programs that it starts.
    pub(super) fn listen_as_parent(trigger: c_int) -> io::Result<Self> {
        let stops = [SIGINT, SIGTERM].into_iter().filter_map(unless_ignored);
        Self::listen_to(stops, unless_ignored(trigger))
    }

    fn listen_to(
        stops: impl IntoIterator<Item = c_int>,
        trigger: Option<c_int>,
    ) -> io::Result<Self> {
        let (woken, wake) = io::pipe()?;
        let listening = Self { stop: Arc::default(), trigger: Arc::default(), woken };
        let stops = stops.into_iter().map(|signal| (signal, &listening.stop));
        let triggers = trigger.map(|signal| (signal, &listening.trigger));
        for (signal, flag) in stops.chain(triggers) {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(listening)
    }

    /// Returns true if the work must end.
    pub(super) fn stops(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Returns true if the trigger came since the previous call.
    pub(super) fn triggers(&self) -> bool {
        self.trigger.swap(false, Relaxed)
    }

    /// A descriptor that can be read once a signal came.
    pub(super) fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Waits for this time, or until a signal comes.
    pub(super) fn wait(&mut self, time: Duration) -> io::Result<()> {
        self.wait_or(time, &[]).map(drop)
    }

    /// Waits for this time, or until a signal comes or `input` can be read. Returns true if it can.
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

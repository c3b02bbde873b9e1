//! A guest that runs in a thread, and is stopped for a moment when it is asked to be.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::guest::{Guest, Ram};
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;

const LOOK: Duration = Duration::from_micros(500);

/// A guest that runs.
pub(super) struct Running<'a> {
    ask: Sender<()>,
    answers: Receiver<Result<Duration>>,
    stretches: &'a AtomicU64,
    stop: &'a Interrupt,
}

/// Ends the guest's thread on each path.
struct Finish<'a>(&'a AtomicBool);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Calls `work` while the guest runs. [`Running::hold`] makes the guest's thread read its registers and call `held`.
pub(super) fn while_running<R: Ram + Send, T>(
    guest: &mut Guest<R>,
    held: &mut (dyn FnMut() -> Result<()> + Send),
    stop: &Interrupt,
    work: impl FnOnce(&Running<'_>) -> Result<T>,
) -> Result<T> {
    let (ask, asked) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let (stretches, finished) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let ran = scope.spawn(|| {
            // Moved, so that a failure ends the wait for an answer.
            let (asked, answer) = (asked, answer);
            while !finished.load(Relaxed) {
                guest.stretch()?;
                stretches.fetch_add(1, Relaxed);
                if asked.try_recv().is_ok() {
                    let began = Instant::now();
                    let done = guest.registers().and_then(|_| held());
                    let _ = answer.send(done.map(|()| began.elapsed()));
                }
            }
            Ok(())
        });
        let finish = Finish(&finished);
        let done = work(&Running { ask, answers, stretches: &stretches, stop });
        drop(finish);
        ran.join().expect("the guest's thread does not panic").and(done)
    })
}

impl Running<'_> {
    /// Holds the guest, and returns the time for which it stood still.
    pub(super) fn hold(&self) -> Result<Duration> {
        let ended = || Error::Failed("the guest has ended".to_owned());
        self.ask.send(()).map_err(|_| ended())?;
        self.answers.recv().map_err(|_| ended())?
    }

    /// Waits until the guest has written so many bytes' pages.
    pub(super) fn write(&self, bytes: u64) -> Result<()> {
        let until = self.stretches.load(Relaxed) + bytes.div_ceil(super::guest::STRETCH);
        let mut last = (Instant::now(), 0);
        while self.stretches.load(Relaxed) < until {
            self.stop.check()?;
            let now = self.stretches.load(Relaxed);
            if now != last.1 {
                last = (Instant::now(), now);
            } else if last.0.elapsed() > super::PATIENCE {
                return Err(Error::Failed("the guest does not go on".to_owned()));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

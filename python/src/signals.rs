//! Waits and long work, which a signal such as Ctrl-C's ends.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use cowslip::image::Progress;
use pyo3::prelude::*;

use crate::errors::{raise, usage};

/// The interval at which a wait checks for signals, such as Ctrl-C's.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// A timeout from Python's seconds; an error if they are negative or infinite.
pub(crate) fn patience(seconds: Option<f64>) -> PyResult<Duration> {
    match seconds {
        None => Ok(Duration::from_secs(u64::from(u32::MAX))),
        Some(seconds) => Duration::try_from_secs_f64(seconds)
            .map_err(|_| usage(format!("a timeout is seconds from 0 on, not {seconds}"))),
    }
}

/// Does long work, which a signal such as Ctrl-C's ends at its next report of progress.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut(Progress) -> ControlFlow<()>) -> cowslip::Result<T> + Send,
) -> PyResult<T> {
    let (mut raised, mut looked) = (None, Instant::now());
    let answer = py.detach(|| {
        work(&mut |_| {
            if raised.is_some() {
                return ControlFlow::Break(());
            }
            if looked.elapsed() < SIGNALS_EVERY {
                return ControlFlow::Continue(());
            }
            looked = Instant::now();
            match Python::attach(|py| py.check_signals()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    raised = Some(error);
                    ControlFlow::Break(())
                }
            }
        })
    });
    match raised {
        Some(error) => Err(error),
        None => answer.map_err(|error| raise(&error)),
    }
}

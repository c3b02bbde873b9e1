//! Work that waits for a store in a thread of its own, so that the caller's thread can break it off at any time.
//!
//! ```text
//!  caller's thread   progress() ten times a second, and for each step of the work ──Break──▶ cancels the token
//!  work's thread     requests, parts that are waited for, pauses: each wait ends when the token is cancelled
//! ```

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use cowslip::image::{OnProgress, Progress};
use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::process::BlockedSignals;
use tokio_util::sync::CancellationToken;

/// The longest time that a wait goes on after it was broken off.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// The error of a wait that was broken off.
pub(crate) fn broken_off() -> Error {
    Error::new(ErrorKind::Busy, "wait for a store").because("it was broken off")
}

/// Runs `work`, and calls `progress` in this thread: for each step, and at least every [`TICK`] between them.
pub(crate) fn attended<T: Send>(
    progress: OnProgress<'_>,
    work: impl FnOnce(&CancellationToken, OnProgress<'_>) -> Result<T> + Send,
) -> Result<T> {
    let cancel = CancellationToken::new();
    let (tell, told) = sync_channel(0);
    let (answer, answers) = sync_channel(1);
    let its_cancel = cancel.clone();
    let work = move || {
        work(&its_cancel, &mut |now: Progress| match tell.send(now) {
            Ok(()) => answers.recv().unwrap_or(ControlFlow::Break(())),
            Err(_) => ControlFlow::Break(()),
        })
    };
    thread::scope(|scope| {
        let worker = {
            // Signals go to the program's threads only.
            let _blocked = BlockedSignals::enter();
            thread::Builder::new().name("cowslip-remote".into()).spawn_scoped(scope, work)
        };
        let worker = worker.map_err(|_| {
            Error::new(ErrorKind::OutOfMemory, "start the thread that waits for a store")
                .because("no thread can be started")
        })?;
        // A panic of `progress` ends the work too.
        let _ended = cancel.clone().drop_guard();
        let mut now = Progress { done_bytes: 0, total_bytes: 0 };
        loop {
            let is_step = match told.recv_timeout(TICK) {
                Ok(step) => {
                    now = step;
                    true
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let flow = if cancel.is_cancelled() { ControlFlow::Break(()) } else { progress(now) };
            if flow.is_break() {
                cancel.cancel();
            }
            if is_step {
                let _ = answer.send(flow);
            }
        }
        match worker.join().unwrap_or_else(|panic| resume_unwind(panic)) {
            // A failure after the cancellation is a consequence of it.
            Err(error) if cancel.is_cancelled() && error.kind() != ErrorKind::Busy => {
                Err(broken_off())
            }
            done => done,
        }
    })
}

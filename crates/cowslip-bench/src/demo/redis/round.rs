//! One save under load: what is asked of the server when, on one clock.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use super::cut::Cut;
use super::load::{Log, Writer, nanoseconds, under_load};
use super::resp::{Connection, Reply, unexpected};
use super::{Error, Progress, check};

/// How long the load runs before and after a save.
const QUIET: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(10);
const LONGEST_SAVE: Duration = Duration::from_secs(900);

/// What the writers do while `BGSAVE` is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    /// They write on: what is measured.
    Busy,
    /// They wait until it has begun: the save must hold one state, to the byte.
    Still,
}

/// When what happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) began_ns: u64,
    pub(crate) cut: Cut,
    pub(crate) done_ns: u64,
    pub(crate) ended_ns: u64,
}

/// Who takes part in a round.
pub(crate) struct Round<'a> {
    pub(crate) control: &'a mut Connection,
    pub(crate) writers: &'a mut [Writer],
    pub(crate) clock: Instant,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) label: &'a str,
}

impl Round<'_> {
    pub(crate) fn busy(self, progress: Progress<'_>) -> (Result<Times, Error>, Vec<Log>) {
        let Self { control, writers, clock, stop, label } = self;
        under_load(writers, clock, || {
            let began_ns = nanoseconds(clock);
            thread::sleep(QUIET);
            let cut = begin_save(control, clock)?;
            let done_ns = wait_saved(control, clock, stop, label, progress)?;
            thread::sleep(QUIET);
            Ok(Times { began_ns, cut, done_ns, ended_ns: nanoseconds(clock) })
        })
    }

    pub(crate) fn still(self, progress: Progress<'_>) -> (Result<Times, Error>, Vec<Log>) {
        let Self { control, writers, clock, stop, label } = self;
        let began_ns = nanoseconds(clock);
        let ((), mut logs) = under_load(writers, clock, || thread::sleep(QUIET));
        let cut = match begin_save(control, clock) {
            Ok(cut) => cut,
            Err(error) => return (Err(error), logs),
        };
        let (times, later) = under_load(writers, clock, || {
            let done_ns = wait_saved(control, clock, stop, label, progress)?;
            thread::sleep(QUIET);
            Ok(Times { began_ns, cut, done_ns, ended_ns: nanoseconds(clock) })
        });
        for (log, later) in logs.iter_mut().zip(later) {
            log.append(later);
        }
        (times, logs)
    }
}

fn begin_save(control: &mut Connection, clock: Instant) -> Result<Cut, Error> {
    let sent_ns = nanoseconds(clock);
    match control.ask(&[b"BGSAVE"]).map_err(Error::io("BGSAVE"))? {
        Reply::Status(text) if text == "Background saving started" => {
            Ok(Cut { sent_ns, replied_ns: nanoseconds(clock) })
        }
        other => Err(unexpected("BGSAVE", &other)),
    }
}

/// Returns when the save had ended.
fn wait_saved(
    control: &mut Connection,
    clock: Instant,
    stop: &AtomicBool,
    label: &str,
    progress: Progress<'_>,
) -> Result<u64, Error> {
    let begin = Instant::now();
    while begin.elapsed() < LONGEST_SAVE {
        check(stop)?;
        let info = control.info("persistence")?;
        if info.number("rdb_bgsave_in_progress")? == 0 {
            return Ok(nanoseconds(clock));
        }
        let keys = |field| info.number(field).unwrap_or(0);
        progress(label, keys("current_save_keys_processed"), keys("current_save_keys_total"));
        thread::sleep(POLL);
    }
    let reply = format!("no save after {} s", LONGEST_SAVE.as_secs());
    Err(Error::BadReply { request: "BGSAVE", reply })
}

//! One save under load: what is asked of the server when, on one clock.

use std::time::{Duration, Instant};
use std::{fs, thread};

use cowslip_sys::{process, scheduling};

use super::consistency::Cut;
use super::load::{Log, Writer, nanoseconds, under_load};
use super::memory::used_bytes;
use super::resp::{Connection, Reply, unexpected};
use super::{Error, Progress, check};
use crate::interrupt::Interrupt;

/// How long the load runs before and after a save.
const QUIET: Duration = Duration::from_millis(1000);
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

/// When what happened, and what the server and the machine had used by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) began_ns: u64,
    pub(crate) cut: Cut,
    pub(crate) done_ns: u64,
    pub(crate) ended_ns: u64,
    /// Processor time of the server before the save, during and after it.
    pub(crate) cpu_ns: [u64; 3],
    /// More than before, at worst.
    pub(crate) extra_bytes: u64,
}

/// Who takes part in a round.
pub(crate) struct Round<'a> {
    pub(crate) control: &'a mut Connection,
    pub(crate) writers: &'a mut [Writer],
    pub(crate) pid: i32,
    pub(crate) has_idle_children: bool,
    pub(crate) clock: Instant,
    pub(crate) stop: &'a Interrupt,
    pub(crate) label: &'a str,
}

impl Round<'_> {
    /// The writers write all the while, or (`Still`) not while the save begins.
    pub(crate) fn run(
        mut self,
        writers: Writers,
        progress: Progress<'_>,
    ) -> (Result<Times, Error>, Vec<Log>) {
        let (clock, is_still) = (self.clock, writers == Writers::Still);
        let of_round = std::mem::take(&mut self.writers);
        if !is_still {
            return under_load(of_round, clock, || {
                let before = self.quiet()?;
                let begun = self.begin(before)?;
                self.finish(begun, progress)
            });
        }
        let (before, mut logs) = under_load(of_round, clock, || self.quiet());
        let begun = match before.and_then(|before| self.begin(before)) {
            Ok(begun) => begun,
            Err(error) => return (Err(error), logs),
        };
        let (times, later) = under_load(of_round, clock, || self.finish(begun, progress));
        for (log, later) in logs.iter_mut().zip(later) {
            log.append(later);
        }
        (times, logs)
    }

    fn quiet(&self) -> Result<Before, Error> {
        let (began_ns, cpu_ns) = (nanoseconds(self.clock), self.cpu_ns()?);
        thread::sleep(QUIET);
        Ok(Before { began_ns, cpu_ns })
    }

    fn begin(&mut self, before: Before) -> Result<Begun, Error> {
        let (cpu_ns, used_bytes) = (self.cpu_ns()?, used_bytes()?);
        let sent_ns = nanoseconds(self.clock);
        let cut = match self.control.ask(&[b"BGSAVE"]).map_err(Error::io("BGSAVE"))? {
            Reply::Status(text) if text == "Background saving started" => {
                Cut { sent_ns, replied_ns: nanoseconds(self.clock) }
            }
            other => return Err(unexpected("BGSAVE", &other)),
        };
        if self.has_idle_children {
            for child in children(self.pid)? {
                let idle = scheduling::set_idle(child, true);
                idle.map_err(|errno| Error::io("make a child idle")(errno.into()))?;
            }
        }
        Ok(Begun { before, cpu_ns, used_bytes, cut })
    }

    fn finish(&mut self, begun: Begun, progress: Progress<'_>) -> Result<Times, Error> {
        let Begun { before, cpu_ns: cpu_at_save, used_bytes: used_before, cut } = begun;
        let (done_ns, most_bytes) = self.wait_saved(progress)?;
        let cpu_at_end = self.cpu_ns()?;
        thread::sleep(QUIET);
        let ended_ns = nanoseconds(self.clock);
        let cpu_ns =
            [cpu_at_save - before.cpu_ns, cpu_at_end - cpu_at_save, self.cpu_ns()? - cpu_at_end];
        let extra_bytes = most_bytes.saturating_sub(used_before);
        Ok(Times { began_ns: before.began_ns, cut, done_ns, ended_ns, cpu_ns, extra_bytes })
    }

    /// Returns when the save had ended, and what the machine used at worst until then.
    fn wait_saved(&mut self, progress: Progress<'_>) -> Result<(u64, u64), Error> {
        let (begin, mut most_bytes) = (Instant::now(), 0);
        while begin.elapsed() < LONGEST_SAVE {
            check(self.stop)?;
            let info = self.control.info("persistence")?;
            if info.number("rdb_bgsave_in_progress")? == 0 {
                return Ok((nanoseconds(self.clock), most_bytes));
            }
            most_bytes = most_bytes.max(used_bytes()?);
            let keys = |field| info.number(field).unwrap_or(0);
            let done = keys("current_save_keys_processed");
            progress(self.label, done, keys("current_save_keys_total"));
            thread::sleep(POLL);
        }
        let reply = format!("no save after {} s", LONGEST_SAVE.as_secs());
        Err(Error::BadReply { request: "BGSAVE", reply })
    }

    /// Of all threads of the server, without its children.
    fn cpu_ns(&self) -> Result<u64, Error> {
        let used = process::cpu_ns_of(self.pid);
        used.map_err(|errno| Error::io("read the server's processor time")(errno.into()))
    }
}

/// When a round began.
#[derive(Clone, Copy)]
struct Before {
    began_ns: u64,
    cpu_ns: u64,
}

/// A save that has begun.
#[derive(Clone, Copy)]
struct Begun {
    before: Before,
    cpu_ns: u64,
    used_bytes: u64,
    cut: Cut,
}

/// The children that the first thread of a process forked.
fn children(pid: i32) -> Result<Vec<i32>, Error> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(&path).map_err(Error::io(path))?;
    Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

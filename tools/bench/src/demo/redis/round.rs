//! One save under load: the sequence of requests to the server, on one clock.

use std::time::{Duration, Instant};
use std::{fs, thread};

use cowslip_sys::scheduling;

use super::consistency::Cut;
use super::cpu::Cpu;
use super::filled_server::FilledServer;
use super::load::{Log, Traffic, nanoseconds, under_load};
use super::memory::used_bytes;
use super::resp::{Reply, unexpected};
use super::{Error, Progress, check};
use crate::interrupt::Interrupt;

const POLL: Duration = Duration::from_millis(10);
const LONGEST_SAVE: Duration = Duration::from_secs(900);

/// Activity of the clients around the request for `BGSAVE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    /// They go on: the measured case.
    Busy,
    /// They wait until the save has begun: it must hold one state, to the byte.
    Still,
}

/// A moment of a round, and the server's processor time until then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) at_ns: u64,
    pub(crate) cpu: Cpu,
}

/// The times of a round.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    pub(crate) cut: Cut,
    /// At the beginning, before the save, after it, and at the end of each span since.
    pub(crate) stamps: Vec<Stamp>,
    /// The most memory of the machine beyond that before the save.
    pub(crate) extra_bytes: u64,
}

/// The participants and the course of a round.
pub(crate) struct Round<'a> {
    pub(crate) server: &'a mut FilledServer,
    pub(crate) has_idle_children: bool,
    pub(crate) traffic: &'a Traffic,
    /// Time that the load runs unmeasured at first.
    pub(crate) lead: Duration,
    /// Time that it runs before a save, and after it, in spans with figures of their own.
    pub(crate) before: Duration,
    pub(crate) after: &'a [Duration],
    pub(crate) clock: Instant,
    pub(crate) stop: &'a Interrupt,
    pub(crate) label: &'a str,
}

impl Round<'_> {
    /// Has the clients ask all the while, or (`Still`) except while the save begins.
    pub(crate) fn run(
        mut self,
        writers: Writers,
        progress: Progress<'_>,
    ) -> (Result<Times, Error>, Vec<Log>) {
        let (clock, traffic) = (self.clock, self.traffic);
        let mut clients = std::mem::take(&mut self.server.clients);
        let ran = match writers {
            Writers::Busy => under_load(&mut clients, traffic, clock, || {
                let before = self.quiet()?;
                let begun = self.begin(before)?;
                self.finish(begun, progress)
            }),
            Writers::Still => {
                let (before, mut logs) = under_load(&mut clients, traffic, clock, || self.quiet());
                match before.and_then(|before| self.begin(before)) {
                    Ok(begun) => {
                        let rest = || self.finish(begun, progress);
                        let (times, later) = under_load(&mut clients, traffic, clock, rest);
                        logs.iter_mut().zip(later).for_each(|(log, later)| log.append(later));
                        (times, logs)
                    }
                    Err(error) => (Err(error), logs),
                }
            }
        };
        self.server.clients = clients;
        ran
    }

    /// Runs without clients; `work` is done once the save has begun.
    pub(crate) fn run_idle(
        mut self,
        work: impl FnOnce(&mut FilledServer) -> Result<(), Error>,
        progress: Progress<'_>,
    ) -> Result<Times, Error> {
        let before = self.quiet()?;
        let begun = self.begin(before)?;
        work(self.server)?;
        self.finish(begun, progress)
    }

    fn stamp(&self) -> Result<Stamp, Error> {
        Ok(Stamp { cpu: Cpu::from_pid(self.server.pid)?, at_ns: nanoseconds(self.clock) })
    }

    fn quiet(&self) -> Result<Stamp, Error> {
        thread::sleep(self.lead);
        let began = self.stamp()?;
        thread::sleep(self.before);
        Ok(began)
    }

    fn begin(&mut self, before: Stamp) -> Result<Begun, Error> {
        let used_bytes = used_bytes()?;
        let at_save = self.stamp()?;
        let sent_ns = at_save.at_ns;
        let cut = match self.server.control.ask(&[b"BGSAVE"]).map_err(Error::io("BGSAVE"))? {
            Reply::Status(text) if text == "Background saving started" => {
                Cut { sent_ns, replied_ns: nanoseconds(self.clock) }
            }
            other => return Err(unexpected("BGSAVE", &other)),
        };
        if self.has_idle_children {
            for child in children(self.server.pid)? {
                let idle = scheduling::set_idle(child, true);
                idle.map_err(|errno| Error::io("make a child idle")(errno.into()))?;
            }
        }
        Ok(Begun { stamps: vec![before, at_save], used_bytes, cut })
    }

    fn finish(&mut self, begun: Begun, progress: Progress<'_>) -> Result<Times, Error> {
        let Begun { mut stamps, used_bytes: used_before, cut } = begun;
        let most_bytes = self.wait_saved(progress)?;
        stamps.push(self.stamp()?);
        for &span in self.after {
            check(self.stop)?;
            thread::sleep(span);
            stamps.push(self.stamp()?);
        }
        Ok(Times { cut, stamps, extra_bytes: most_bytes.saturating_sub(used_before) })
    }

    /// Waits until the save has ended, and returns the machine's highest memory use until then.
    fn wait_saved(&mut self, progress: Progress<'_>) -> Result<u64, Error> {
        let (begin, mut most_bytes) = (Instant::now(), 0);
        while begin.elapsed() < LONGEST_SAVE {
            check(self.stop)?;
            let info = self.server.control.info("persistence")?;
            if info.number("rdb_bgsave_in_progress")? == 0 {
                return Ok(most_bytes);
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
}

/// A save that has begun.
struct Begun {
    stamps: Vec<Stamp>,
    used_bytes: u64,
    cut: Cut,
}

/// The children that the first thread of a process forked.
fn children(pid: u64) -> Result<Vec<i32>, Error> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(&path).map_err(Error::io(path))?;
    Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

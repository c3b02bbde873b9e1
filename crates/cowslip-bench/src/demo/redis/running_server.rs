//! One server at work: its filled server, its writers, and its saves, each of them verified.

use std::fs;
use std::time::Instant;

use super::cut::{Cut, History, Keyspace, Verdict, judge};
use super::keyspace::Shape;
use super::load::Writer;
use super::measure::{Window, peaks};
use super::memory::{Mapped, warm_free};
use super::resp::Connection;
use super::round::{Round, Writers};
use super::server::{Directory, RDB, Server};
use super::setup::ServerSetup;
use super::{Error, Progress, Session, check};

/// A server that is to have huge pages must have them under this share of its memory.
const MIN_COVERAGE: f64 = 0.5;

/// What one save cost, and whether it was right.
#[derive(Debug)]
pub(crate) struct Save {
    pub(crate) label: String,
    pub(crate) writers: Writers,
    pub(crate) fork_ns: u64,
    pub(crate) duration_ns: u64,
    pub(crate) cow_bytes: u64,
    pub(crate) mapped_before: Mapped,
    pub(crate) mapped_after: Mapped,
    /// The requests of the quiet phase, and those while the save went on.
    pub(crate) quiet: Window,
    pub(crate) during: Window,
    /// Longest latencies over time, in seconds since this server's load first began.
    pub(crate) peaks: Vec<(f64, f64)>,
    /// When the save went on, on the same clock.
    pub(crate) span: (f64, f64),
    /// On the file that was saved.
    pub(crate) saved: Verdict,
    /// On the server that went on, after everything.
    pub(crate) live: Verdict,
}

/// A server, from its first key to its last save.
#[derive(Debug)]
pub(crate) struct RunningServer {
    pub(crate) name: &'static str,
    pub(crate) saves: Vec<Save>,
    /// Error replies, lost connections, and saves that could not be finished or read.
    pub(crate) failed_requests: u64,
    server: Server,
    control: Connection,
    writers: Vec<Writer>,
    pid: u64,
    shape: Shape,
    clock: Instant,
    /// How long the load has run in all rounds so far.
    loaded_seconds: f64,
}

impl RunningServer {
    /// Starts a server and fills it.
    pub(crate) fn start(
        setup: &ServerSetup,
        session: Session<'_>,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        let Session { options, shape, stop } = session;
        let directory = Directory::new(&options.directory)?;
        let server = Server::start(setup, &options.redis_server, directory, stop)?;
        let mut control = server.connect()?;
        let pid = control.info("server")?.number("process_id")?;
        shape.fill(&mut control, stop, &format!("fill {}", setup.name), progress)?;

        let coverage = Mapped::of(pid)?.coverage();
        if setup.needs_huge_pages && coverage < MIN_COVERAGE {
            return Err(Error::NotStarted {
                server: setup.name.to_owned(),
                why: format!("huge pages map only {:.0} % of its memory", coverage * 100.0),
                log: String::new(),
            });
        }
        let writer = |index| {
            let keys = shape.keys / options.clients;
            let place = (index, options.clients);
            Ok(Writer::new(server.connect()?, place, keys, options.value_bytes))
        };
        let writers = (0..options.clients).map(writer).collect::<Result<_, Error>>()?;
        Ok(Self {
            name: setup.name,
            saves: Vec::new(),
            failed_requests: 0,
            server,
            control,
            writers,
            pid,
            shape,
            clock: Instant::now(),
            loaded_seconds: 0.0,
        })
    }

    /// Whether it can go on.
    pub(crate) fn is_well(&self) -> bool {
        self.failed_requests == 0
    }

    /// One save, and the proof that it is exact.
    pub(crate) fn save(
        &mut self,
        label: &str,
        writers: Writers,
        session: Session<'_>,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        check(session.stop)?;
        let of_server = |what: &str| format!("{what} {label} of {}", self.name);
        let (running, checking, reading) =
            (of_server("run"), of_server("check"), of_server("read"));
        warm_free(session.shape.footprint_bytes());
        let mapped_before = Mapped::settled(self.pid, session.stop)?;

        let round = Round {
            control: &mut self.control,
            writers: &mut self.writers,
            clock: self.clock,
            stop: session.stop,
            label: &running,
        };
        let (times, logs) = match writers {
            Writers::Busy => round.busy(progress),
            Writers::Still => round.still(progress),
        };
        self.failed_requests += logs.iter().map(|log| log.failed_requests).sum::<u64>();
        let times = times?;
        let info = self.control.info("persistence")?;
        if info.text("rdb_last_bgsave_status") != Some("ok") {
            let reply = format!("a failed save; the log: {}", self.server.last_words());
            return Err(Error::BadReply { request: "BGSAVE", reply });
        }
        let cow_bytes = info.number("rdb_last_cow_size")?;
        let fork_ns = self.control.info("stats")?.number("latest_fork_usec")? * 1000;

        // Reading every key also touches all memory: what is mapped huge afterwards is what
        // a program that goes on has.
        Mapped::settled(self.pid, session.stop)?;
        let live = self.shape.read(&mut self.control, session.stop, &checking, progress)?;
        let mapped_after = Mapped::of(self.pid)?;
        let saved = self.read_saved(session, &reading, progress)?;
        let histories: Vec<History<'_>> =
            self.writers.iter().zip(&logs).map(|(writer, log)| writer.history(log)).collect();
        let saved = judge(&histories, times.cut, &saved);
        let live = judge(&histories, Cut::END, &live);

        let before = self.loaded_seconds;
        let seconds = |ns: u64| before + (ns - times.began_ns) as f64 / 1e9;
        let peaks = peaks(&logs, times.began_ns).into_iter().map(|(s, ns)| (before + s, ns));
        self.saves.push(Save {
            label: label.to_owned(),
            writers,
            fork_ns,
            duration_ns: times.done_ns - times.cut.sent_ns,
            cow_bytes,
            mapped_before,
            mapped_after,
            quiet: Window::of(&logs, times.began_ns, times.cut.sent_ns),
            during: Window::of(&logs, times.cut.sent_ns, times.done_ns),
            peaks: peaks.collect(),
            span: (seconds(times.cut.sent_ns), seconds(times.done_ns)),
            saved,
            live,
        });
        self.loaded_seconds = seconds(times.ended_ns);
        for (writer, log) in self.writers.iter_mut().zip(&logs) {
            writer.settle(log);
        }
        match logs.into_iter().find_map(|log| log.first_failure) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Has a second, stock server read what this one saved.
    fn read_saved(
        &self,
        session: Session<'_>,
        label: &str,
        progress: Progress<'_>,
    ) -> Result<Keyspace, Error> {
        let options = session.options;
        let directory = Directory::new(&options.directory)?;
        let rdb = directory.path().join(RDB);
        fs::rename(self.server.rdb(), rdb).map_err(Error::io("take the saved file"))?;
        let reader =
            ServerSetup { name: "the server that reads the save", ..ServerSetup::stock_4k() };
        let server = Server::start(&reader, &options.redis_server, directory, session.stop)?;
        self.shape.read(&mut server.connect()?, session.stop, label, progress)
    }
}

//! A measured server: filled, with its writers, and its saves, each of them verified.

use std::fs;
use std::time::{Duration, Instant};

use super::consistency::{Cut, History, Keyspace, Violations, violations};
use super::filled_server::FilledServer;
use super::load::{Log, Traffic};
use super::measure::{Window, slowest, slowest_of_each};
use super::memory::{Mapped, warm};
use super::round::{Round, Times, Writers};
use super::server::{Directory, RDB, Server};
use super::setup::ServerSetup;
use super::{Error, Progress, Session, check};

/// Time that the load runs before and after a save.
const QUIET: Duration = Duration::from_millis(1000);
/// Time around a fork, on each side, with fine steps.
pub(crate) const AROUND_NS: u64 = 150_000_000;
const AROUND_STEP_NS: u64 = 1_000_000;
/// Width of a step of the latencies of a whole save.
const STEP_NS: u64 = 10_000_000;

/// Costs of one save, and its verification.
#[derive(Debug)]
pub(crate) struct Save {
    pub(crate) label: String,
    pub(crate) writers: Writers,
    pub(crate) fork_ns: u64,
    /// Start and end, in ns from BGSAVE, of the slowest request that was under way at the fork.
    pub(crate) held_up: Option<(i64, i64)>,
    pub(crate) duration_ns: u64,
    /// Redis's own count.
    pub(crate) cow_bytes: u64,
    /// The most memory of the whole machine beyond that before the save.
    pub(crate) extra_bytes: u64,
    pub(crate) mapped_before: Mapped,
    pub(crate) mapped_after: Mapped,
    /// The requests before the save, while it went on, and after it.
    pub(crate) quiet: Window,
    pub(crate) during: Window,
    pub(crate) after: Window,
    /// The slowest request under way in each millisecond around the fork, which is in the middle.
    pub(crate) around_fork_ns: Vec<u64>,
    /// The same over the whole time: seconds since this server's load first began, and nanoseconds.
    pub(crate) slowest: Vec<(f64, f64)>,
    /// Start and end of the save, on the same clock.
    pub(crate) span: (f64, f64),
    /// Violations of the saved file.
    pub(crate) saved: Violations,
    /// Violations of the live server in the end.
    pub(crate) live: Violations,
}

impl Save {
    /// Returns true if every key of the file is as it was at one instant.
    pub(crate) fn is_exact(&self) -> bool {
        self.saved == Violations::default()
    }
}

/// Results of a setup.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) setup: ServerSetup,
    pub(crate) saves: Vec<Save>,
    /// Error replies, lost connections, and saves that could not be finished or read.
    pub(crate) failed_requests: u64,
}

impl Measured {
    /// The saves except those that only prove that a save is exact.
    pub(crate) fn busy_saves(&self) -> impl Iterator<Item = &Save> {
        self.saves.iter().filter(|save| save.writers == Writers::Busy)
    }
}

/// A setup's server, from its first key to its last save.
#[derive(Debug)]
pub(crate) struct RunningServer {
    pub(crate) measured: Measured,
    filled: FilledServer,
    clock: Instant,
    /// Time that the load has run in all rounds so far.
    loaded_seconds: f64,
}

impl RunningServer {
    /// Starts a server and fills it.
    pub(crate) fn start(
        setup: &ServerSetup,
        session: Session<'_>,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        let options = session.options;
        let directory = Directory::new(&options.directory)?;
        let place = (options.redis_server.as_path(), directory);
        let size = (session.shape, options.clients);
        let filled = FilledServer::start(setup, place, size, session.stop, progress)?;
        let measured = Measured { setup: setup.clone(), saves: Vec::new(), failed_requests: 0 };
        Ok(Self { measured, filled, clock: Instant::now(), loaded_seconds: 0.0 })
    }

    /// Returns true if it can go on.
    pub(crate) fn is_well(&self) -> bool {
        self.measured.failed_requests == 0
    }

    /// Saves once, and verifies the save.
    pub(crate) fn save(
        &mut self,
        label: &str,
        writers: Writers,
        session: Session<'_>,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        check(session.stop)?;
        let title = self.measured.setup.title;
        let doing = |what: &str| format!("{title}: {what}{label}");
        warm(session.shape.footprint_bytes(), session.stop)?;
        let pid = self.filled.pid;
        let mapped_before = Mapped::when_stable(pid, session.stop)?;

        let round = Round {
            server: &mut self.filled,
            has_idle_children: self.measured.setup.has_idle_children,
            traffic: &Traffic::WRITES,
            lead: Duration::ZERO,
            before: QUIET,
            after: &[QUIET],
            clock: self.clock,
            stop: session.stop,
            label: &doing(""),
        };
        let (times, logs) = round.run(writers, progress);
        self.measured.failed_requests += logs.iter().map(|log| log.failed_requests).sum::<u64>();
        let times = times?;
        let (fork_ns, cow_bytes) = self.filled.last_save()?;

        // Reading every key also touches all memory, like a program that goes on: afterwards it is mapped as in such a
        // program.
        Mapped::when_stable(pid, session.stop)?;
        let checking = doing("check after ");
        let control = &mut self.filled.control;
        let live = session.shape.read(control, session.stop, &checking, progress)?;
        let mapped_after = Mapped::from_pid(pid)?;
        let saved = self.read_saved(session, &doing("verify "), progress)?;
        let clients = self.filled.clients.iter().zip(&logs);
        let histories: Vec<History<'_>> =
            clients.map(|(client, log)| client.history(log)).collect();

        let before = self.loaded_seconds;
        let Times { cut, ref stamps, .. } = times;
        let [began_ns, _, done_ns, ended_ns] = [0, 1, 2, 3].map(|at: usize| stamps[at].at_ns);
        let span = |at: usize| {
            let (from, to) = (&stamps[at], &stamps[at + 1]);
            Window::new(&logs, from.at_ns, to.at_ns, to.cpu.all_ns - from.cpu.all_ns)
        };
        let seconds = |ns: u64| before + (ns - began_ns) as f64 / 1e9;
        let at = |step| seconds(began_ns + step as u64 * STEP_NS);
        let steps = slowest_of_each(&logs, began_ns, ended_ns, STEP_NS);
        let (around_from, around_to) =
            (cut.sent_ns.saturating_sub(AROUND_NS), cut.sent_ns + AROUND_NS);
        let from_bgsave = |ns: u64| ns as i64 - cut.sent_ns as i64;
        let held_up = slowest(&logs, cut.sent_ns, cut.replied_ns)
            .map(|(sent_ns, acked_ns)| (from_bgsave(sent_ns), from_bgsave(acked_ns)));
        self.measured.saves.push(Save {
            label: label.to_owned(),
            writers,
            fork_ns,
            held_up,
            duration_ns: done_ns - cut.sent_ns,
            cow_bytes,
            extra_bytes: times.extra_bytes,
            mapped_before,
            mapped_after,
            quiet: span(0),
            during: span(1),
            after: span(2),
            around_fork_ns: slowest_of_each(&logs, around_from, around_to, AROUND_STEP_NS),
            slowest: steps.iter().enumerate().map(|(step, &ns)| (at(step), ns as f64)).collect(),
            span: (seconds(cut.sent_ns), seconds(done_ns)),
            saved: violations(&histories, cut, &saved),
            live: violations(&histories, Cut::END, &live),
        });
        self.loaded_seconds = seconds(ended_ns);
        for (client, log) in self.filled.clients.iter_mut().zip(&logs) {
            client.apply(log);
        }
        match logs.into_iter().find_map(|log: Log| log.first_failure) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Has a second, stock server read this one's saved file.
    fn read_saved(
        &self,
        session: Session<'_>,
        label: &str,
        progress: Progress<'_>,
    ) -> Result<Keyspace, Error> {
        let options = session.options;
        let directory = Directory::new(&options.directory)?;
        let rdb = directory.path().join(RDB);
        fs::rename(self.filled.server.rdb(), rdb).map_err(Error::io("take the saved file"))?;
        let title = "the server that reads the save";
        let reader = ServerSetup { title, ..ServerSetup::stock_4k() };
        progress(label, 0, session.shape.keys as u64);
        let server = Server::start(&reader, &options.redis_server, directory, session.stop)?;
        session.shape.read(&mut server.connect()?, session.stop, label, progress)
    }
}

#[cfg(test)]
impl Measured {
    /// One save of this duration, at a steady pace of requests.
    pub(crate) fn example(setup: ServerSetup, duration_ns: u64) -> Self {
        let window = Window {
            latencies: crate::report::Latencies::new(),
            answered: 1,
            ns: duration_ns,
            cpu_ns: 9_000,
        };
        let mapped = Mapped { huge_bytes: 1 << 20, resident_bytes: 4 << 20 };
        let save = Save {
            label: "save 1".to_owned(),
            writers: Writers::Busy,
            fork_ns: 900_000,
            held_up: Some((-200_000, 800_000)),
            duration_ns,
            cow_bytes: 1 << 20,
            extra_bytes: 2 << 20,
            mapped_before: mapped,
            mapped_after: mapped,
            quiet: window.clone(),
            during: window.clone(),
            after: window,
            around_fork_ns: vec![1_000_000; 300],
            slowest: vec![(0.0, 1e6), (0.01, 2e6), (0.02, 1e6)],
            span: (0.005, 0.015),
            saved: Violations::default(),
            live: Violations::default(),
        };
        Self { setup, saves: vec![save], failed_requests: 0 }
    }
}

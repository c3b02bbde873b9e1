//! The same server run in several ways, each with its cycles.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::report::Row;
use cowslip_report::Progress;
use cowslip_sys::process;

use super::cycle::{Cycle, phases};
use super::pages::{Mthp, System};
use super::workload::{Load, Part};
use super::{Bench, CLIENTS, GIB, rows};
use crate::clock::Rounds;
use crate::demo::redis;
use crate::demo::redis::filled_server::FilledServer;
use crate::demo::redis::keyspace::Shape;
use crate::demo::redis::load::{Log, Traffic};
use crate::demo::redis::memory::{Mapped, available_bytes, warm};
use crate::demo::redis::round::{Round, Times, Writers};
use crate::demo::redis::server::Directory;
use crate::demo::redis::setup::ServerSetup;
use crate::demo::redis::value::Random;
use crate::error::{Error, Result};
use crate::program;

/// Time that the load runs before a measured save, and after it.
/// The clients ask for so long before the first phase. A host may take its time for memory that a guest has not touched for
/// some seconds: Redis that rested for 3 s answers up to 150 ms late at first. Servers rest for different times until
/// their memory is stable.
const LEAD: Duration = Duration::from_secs(2);
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];

/// A server's program, memory and values, without the way to run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kind<'a> {
    pub(super) program: &'a Path,
    /// Memory of the server.
    pub(super) size: u64,
    pub(super) value_bytes: usize,
}

/// The ways to run a kind of server.
pub(super) struct Fleet<'a> {
    cowslip: PathBuf,
    system: &'a System,
    order: Random,
    /// True if memory holds the servers of all members at once.
    keeps: bool,
    /// The program, memory and values of the members' servers.
    kind: Option<(PathBuf, u64, usize)>,
    members: Vec<Member>,
}

/// One way to run the server.
struct Member {
    setup: ServerSetup,
    /// `None` before the first turn, and between turns if memory does not hold all servers.
    server: Option<FilledServer>,
    cycles: Vec<Cycle>,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(cowslip: PathBuf, system: &'a System, order: Random) -> Self {
        Self { cowslip, system, order, keeps: false, kind: None, members: Vec::new() }
    }

    /// Measures a part in all ways, and adds its rows.
    pub(super) fn measure(
        &mut self,
        kind: &Kind<'_>,
        (part, prefix): (Part, &str),
        share: f64,
        most_rounds: u32,
        bench: &mut Bench<'_>,
    ) -> Result<()> {
        self.prepare(kind)?;
        let shape = Shape::of_server(kind.size, kind.value_bytes, CLIENTS);
        let variant = format!("{prefix}{}", part.name());
        let load = part.load(shape.keys);
        let rounds = bench.clock.rounds(share, 1, most_rounds);
        let measured = self.rounds(kind, shape, (&load, &variant), rounds, bench);
        // A page with all lines would be too large.
        let is_drawn = prefix.is_empty() && Part::SHORT.contains(&part) && kind.size <= GIB;
        for member in &mut self.members {
            let cycles = std::mem::take(&mut member.cycles);
            let Some(first) = cycles.first() else { continue };
            let name = member.setup.name;
            rows::push(bench.report, name, &variant, kind.size, &cycles);
            if is_drawn {
                rows::push_line(bench.report, name, &variant, &first.line);
            }
        }
        measured
    }

    /// Has all members take turns, and drops a member that fails.
    fn rounds(
        &mut self,
        kind: &Kind<'_>,
        shape: Shape,
        (load, variant): (&Load, &str),
        rounds: Rounds,
        bench: &mut Bench<'_>,
    ) -> Result<()> {
        for round in rounds {
            for at in self.order(self.members.len()) {
                let member = &mut self.members[at];
                if member.cycles.len() < round as usize {
                    continue;
                }
                let doing = format!("{variant}, round {}: {}", round + 1, member.setup.title);
                match member.turn(kind, shape, load, (self.keeps, &doing), self.system, bench) {
                    Ok(cycle) => member.cycles.push(cycle),
                    Err(Error::Failed(why)) => {
                        let row = Row::skipped(member.setup.name, rows::REQUESTS, why);
                        bench.report.row(row.size_bytes(kind.size).variant(variant));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Replaces the members if their servers hold something else.
    fn prepare(&mut self, kind: &Kind<'_>) -> Result<()> {
        let key = Some((kind.program.to_owned(), kind.size, kind.value_bytes));
        if self.kind == key {
            return Ok(());
        }
        let setups = [
            ServerSetup::stock_4k(),
            ServerSetup::stock_thp(),
            ServerSetup::stock_mthp(),
            ServerSetup::cowslip(&self.cowslip),
            ServerSetup::cowslip_user(&self.cowslip),
        ];
        let member = |setup| Member { setup, server: None, cycles: Vec::new() };
        self.members = setups.map(member).into();
        // Leaves half of the memory for copies.
        self.keeps = self.members.len() as u64 * kind.size <= available_bytes()? / 2;
        self.kind = key;
        Ok(())
    }

    /// The numbers below `n` in a random order.
    fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..n).collect();
        for last in (1..n).rev() {
            order.swap(last, (self.order.next() % (last as u64 + 1)) as usize);
        }
        order
    }
}

impl Member {
    /// Saves once to warm up, and once more to measure.
    fn turn(
        &mut self,
        kind: &Kind<'_>,
        shape: Shape,
        load: &Load,
        (keeps, doing): (bool, &str),
        system: &System,
        bench: &mut Bench<'_>,
    ) -> Result<Cycle> {
        let mthp = if self.setup.has_mthp { Some(system.mthp()?) } else { None };
        let mut server = match self.server.take() {
            Some(server) => server,
            None => start(&self.setup, kind, shape, mthp.as_ref(), bench)?,
        };
        let first = format!("{doing}, first save");
        save(&mut server, shape, load, [Duration::ZERO; 2], &AFTER[..1], &first, bench)?;
        let began = (Instant::now(), process::cpu_ns());
        let (times, logs) = save(&mut server, shape, load, [LEAD, BEFORE], &AFTER, doing, bench)?;
        let client_ns = (process::cpu_ns() - began.1) as f64;
        let client_processors = client_ns / began.0.elapsed().as_nanos() as f64;
        let cycle = measure(&mut server, &times, &logs, client_processors)?;
        self.server = keeps.then_some(server);
        Ok(cycle)
    }
}

fn start(
    setup: &ServerSetup,
    kind: &Kind<'_>,
    shape: Shape,
    mthp: Option<&Mthp>,
    bench: &mut Bench<'_>,
) -> Result<FilledServer> {
    warm(shape.footprint_bytes(), bench.stop)?;
    let directory = Directory::new(&redis::directory())?;
    let (place, size) = ((kind.program, directory), (shape, CLIENTS));
    let mut show = shown(bench.progress);
    let server = FilledServer::start(setup, place, size, bench.stop, &mut show)?;
    if let Some(mthp) = mthp {
        mthp.check(Mapped::from_pid(server.pid)?.resident_bytes)?;
    }
    Ok(server)
}

/// Saves once under load, after all work that the last save left has ended.
fn save(
    server: &mut FilledServer,
    shape: Shape,
    load: &Load,
    [lead, before]: [Duration; 2],
    after: &[Duration],
    doing: &str,
    bench: &mut Bench<'_>,
) -> Result<(Times, Vec<Log>)> {
    let stop = bench.stop;
    Mapped::when_stable(server.pid, stop)?;
    warm(shape.footprint_bytes() / 2, stop)?;
    let traffic = match load {
        Load::Clients(traffic) => traffic,
        Load::Once(_) => &Traffic::WRITES,
    };
    let clock = Instant::now();
    let has_idle_children = false;
    let round = Round {
        server,
        has_idle_children,
        traffic,
        lead,
        before,
        after,
        clock,
        stop,
        label: doing,
    };
    let mut show = shown(bench.progress);
    let (times, mut logs) = match *load {
        Load::Clients(_) => {
            let (times, logs) = round.run(Writers::Busy, &mut show);
            (times?, logs)
        }
        Load::Once(values) => {
            let write = |server: &mut FilledServer| {
                shape.store_some(&mut server.control, values, process::now_ns(), stop)
            };
            (round.run_idle(write, &mut show)?, Vec::new())
        }
    };
    match logs.iter_mut().find_map(|log| log.first_failure.take()) {
        Some(failure) => Err(failure.into()),
        None => Ok((times, logs)),
    }
}

/// The results of a save.
fn measure(
    server: &mut FilledServer,
    times: &Times,
    logs: &[Log],
    client_processors: f64,
) -> Result<Cycle> {
    let (fork_ns, _) = server.last_save()?;
    let (phases, line) = phases(times, logs);
    let [_, at_save, .., ended] = &times.stamps[..] else { unreachable!("a round has four spans") };
    let used = ended.cpu.since(at_save.cpu);
    Ok(Cycle {
        phases,
        line,
        fork_ns,
        service_ns: used.service_ns,
        child_ns: used.children_ns,
        extra_bytes: times.extra_bytes,
        huge_coverage: Mapped::from_pid(server.pid)?.coverage(),
        longest_stall_ns: longest_stall_ns(server.pid),
        client_processors,
    })
}

/// The longest time that one of its threads was held up since the program started, by its arena's counter; `None`
/// without an arena.
fn longest_stall_ns(pid: u64) -> Option<u64> {
    let mut status = Command::new(program::cowslip().ok()?);
    let output = status.args(["status", &pid.to_string(), "--json", "-"]).output().ok()?;
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    status["arenas"][0]["longest_stall_ns"].as_u64()
}

/// Shows the progress of a server's load.
fn shown(progress: &mut Progress) -> impl FnMut(&str, u64, u64) {
    let mut phase = String::new();
    move |label, done, of| {
        if phase != label {
            label.clone_into(&mut phase);
            progress.phase(label);
        }
        progress.set(done, of);
    }
}

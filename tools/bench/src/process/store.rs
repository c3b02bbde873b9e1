//! Redis as it comes, on base pages and on huge pages, and under `cowslip run`.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cowslip_process::{Copy, look};
use cowslip_sys::procfs::{MappingUse, field_bytes};
use cowslip_sys::target::Target;

use super::{COPIES, COPIES_MADE, COWSLIP, PAUSE, copies};
use crate::bench::Bench;
use crate::demo::redis;
use crate::demo::redis::filled_server::FilledServer;
use crate::demo::redis::keyspace::Shape;
use crate::demo::redis::load::{Traffic, under_load};
use crate::demo::redis::memory;
use crate::demo::redis::resp::Reply;
use crate::demo::redis::server::{Directory, Server};
use crate::demo::redis::setup::ServerSetup;
use crate::error::{Error, Result, during};
use crate::program::cowslip;
use crate::report::Row;
use crate::rows::push_durations;
use crate::{Options, rows};

const UNDER_COWSLIP: &str = "under cowslip run";
const SERVER: &str = "redis-server";
const CLIENTS: usize = 50;
const VALUE_BYTES: usize = 1024;
/// Holds under load, and the time between two.
const HOLDS: u32 = 20;
const REST: Duration = Duration::from_millis(100);
/// The slowest request while the server is held now and then.
const SLOWEST: &str = "slowest_request";
const FORK: &str = "redis_fork";
/// Memory that eight copies have of their own, with page tables, once they answer.
const MEMORY: &str = "copies_memory";
/// Time to take the server back, after writes to this share of its keys, which touch a tenth of its pages.
const ROLL_BACK: &str = "roll_back";
const WRITTEN_SHARE: usize = 64;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let size = options.size.0.min(super::SIZE.0);
    let setups = [
        (ServerSetup::stock_4k(), "base pages"),
        (ServerSetup::stock_thp(), "huge pages"),
        (ServerSetup::cowslip(&cowslip()?), UNDER_COWSLIP),
    ];
    for (setup, variant) in setups {
        let shape = Shape::of_server(size, VALUE_BYTES, CLIENTS);
        bench.progress.phase(&format!("Redis on {variant}"));
        memory::warm(shape.footprint_bytes() * 2, bench.stop)?;
        let place = (Path::new(SERVER), Directory::new(&redis::directory())?);
        let mut server =
            FilledServer::start(&setup, place, (shape, CLIENTS), bench.stop, &mut |_, _, _| {})?;
        let of = Subject { size, variant, shape, runs: options.runs };
        for part in [holds, answers, rolls_back] {
            part(bench, &mut server, &of)?;
        }
    }
    Ok(())
}

/// What is measured.
struct Subject {
    size: u64,
    variant: &'static str,
    shape: Shape,
    runs: u32,
}

impl Subject {
    fn row(&self, metric: &str, stat: &str, value: f64, unit: &'static str) -> Row {
        Row::new(COWSLIP, metric, stat, value, unit).size_bytes(self.size).variant(self.variant)
    }

    fn push(&self, bench: &mut Bench<'_>, metric: &str, ns: &[f64]) {
        push_durations(bench.report, &self.row(metric, "", 0.0, "ns"), ns);
    }
}

/// The pause, while clients write.
fn holds(bench: &mut Bench<'_>, server: &mut FilledServer, of: &Subject) -> Result<()> {
    let pid = server.pid as i32;
    let clock = Instant::now();
    let (pauses, mut logs) = under_load(&mut server.clients, &Traffic::WRITES, clock, || {
        let hold = |_| {
            thread::sleep(REST);
            Ok(look(pid)?.hold()?.pause().as_nanos() as f64)
        };
        (0..HOLDS).map(hold).collect::<Result<Vec<_>>>()
    });
    let pauses = pauses?;
    of.push(bench, PAUSE, &pauses);
    if let Some(failure) = logs.iter_mut().find_map(|log| log.first_failure.take()) {
        return Err(failure.into());
    }
    let writes = logs.iter().flat_map(|log| &log.writes);
    let took = writes.map(|write| write.acked_ns - write.sent_ns);
    let slowest = took.max().unwrap_or(0);
    bench.report.row(of.row(SLOWEST, "max", slowest as f64, "ns"));
    // The server's own fork.
    server.control.ask(&[b"BGSAVE"]).map_err(during("BGSAVE"))?;
    let began = Instant::now();
    while server.control.info("persistence")?.number("rdb_bgsave_in_progress")? > 0 {
        bench.stop.check()?;
        if began.elapsed() > Duration::from_secs(120) {
            return Err(Error::Failed("a save of Redis does not end".to_owned()));
        }
        thread::sleep(REST);
    }
    let (fork_ns, _) = server.last_save()?;
    let row = Row { system: "fork".to_owned(), ..of.row(FORK, "value", fork_ns as f64, "ns") };
    bench.report.row(row);
    Ok(())
}

/// Eight copies, each in a network of its own, until each has answered.
fn answers(bench: &mut Bench<'_>, server: &mut FilledServer, of: &Subject) -> Result<()> {
    let (mut times, mut bytes) = (Vec::new(), Vec::new());
    for round in bench.clock.rounds(0.3, 3, 1 + of.runs) {
        bench.stop.check()?;
        let began = Instant::now();
        let mut holder = look(server.pid as i32)?.hold()?;
        let made = copies(&mut holder, true)?;
        drop(holder);
        let pids: Vec<_> = made.iter().map(Copy::pid).collect();
        all_answer(&server.server, &pids)?;
        let took = began.elapsed();
        let own = pids.iter().map(|pid| own_bytes(*pid)).sum::<Result<f64>>()?;
        if round > 0 {
            times.push(took.as_nanos() as f64);
            bytes.push(own);
        }
    }
    of.push(bench, COPIES, &times);
    if let Some(all) = rows::median(&bytes) {
        bench.report.row(of.row(MEMORY, "p50", all, "bytes").n(COPIES_MADE as u64));
    }
    Ok(())
}

/// Asks each copy, at the server's port in its own network.
fn all_answer(server: &Server, pids: &[i32]) -> Result<()> {
    let ask = |pid: i32| {
        let target = Target::open(pid).map_err(during("find a copy"))?;
        target.enter_network().map_err(during("enter the network of a copy"))?;
        match server.connect()?.ask(&[b"DBSIZE"]).map_err(during("ask a copy"))? {
            Reply::Integer(keys) if keys > 0 => Ok(()),
            other => Err(Error::Failed(format!("a copy answered {other:?}"))),
        }
    };
    // A thread stays in the network that it has entered.
    thread::scope(|scope| {
        let asked: Vec<_> = pids.iter().map(|pid| scope.spawn(move || ask(*pid))).collect();
        asked.into_iter().try_for_each(|asked| asked.join().expect("it does not panic"))
    })
}

/// Memory that is a process' alone, and its page tables.
fn own_bytes(pid: i32) -> Result<f64> {
    let target = Target::open(pid).map_err(during("find a copy"))?;
    let read = |name| target.read_file(name).map_err(during("look at a copy"));
    let tables = field_bytes(&read("status")?, "VmPTE").unwrap_or(0);
    Ok((MappingUse::rollup(&read("smaps_rollup")?).private_bytes + tables) as f64)
}

fn rolls_back(bench: &mut Bench<'_>, server: &mut FilledServer, of: &Subject) -> Result<()> {
    let mark = look(server.pid as i32)?.mark()?;
    let (mut times, mut written) = (Vec::new(), 0);
    for round in bench.clock.rounds(0.3, 3, 1 + of.runs) {
        let keys = of.shape.keys / WRITTEN_SHARE;
        of.shape.store_some(&mut server.control, keys, u64::from(round) + 1, bench.stop)?;
        let done = mark.roll_back(false)?;
        if round > 0 {
            times.push(done.pause.as_nanos() as f64);
            written = written.max(done.bytes);
        }
    }
    of.push(bench, ROLL_BACK, &times);
    // Arenas go back without a copy.
    bench.report.row(of.row("roll_back_bytes", "max", written as f64, "bytes"));
    Ok(())
}

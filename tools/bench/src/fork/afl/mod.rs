//! AFL++ on SQLite: test cases a second, each in a fork of a process with the database loaded.
//!
//! `afl-fuzz` is the distribution's. It preloads the libraries of `cowslip run` (`AFL_PRELOAD`). An input takes the
//! same edges either way: `afl-showmap` runs all inputs that the sessions kept natively and under Cowslip.

mod harness;
mod session;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::report::Row;

use super::{Bench, MIB, Options};
use crate::error::{Error, Result, during};
use crate::program::{Folder, Launch};
use crate::rows::median;
use session::{Session, Target};

pub(super) const EXECS: &str = "afl_execs";
/// Kept inputs that took another edge, or one another number of times, than natively.
pub(super) const OTHER_EDGES: &str = "afl_inputs_with_other_edges";
/// Memory that the edges are compared on.
pub(super) const EDGES_BYTES: u64 = session::EDGES_MIB * MIB;

const LAUNCHES: [Launch; 4] =
    [Launch::Stock, Launch::StockThp, Launch::Cowslip, Launch::WithMalloc];
const ROUNDS: u32 = 3;
const SECONDS: u32 = 10;
const SEEDS: [&str; 4] = [
    "SELECT id, s FROM t WHERE id BETWEEN 7 AND 9 ORDER BY s DESC;",
    "BEGIN; INSERT INTO t VALUES (NULL, 1, 'new', zeroblob(500)); UPDATE t SET v = 'written' WHERE \
     id IN (7, 70000); DELETE FROM t WHERE id = 9; COMMIT;",
    "CREATE TABLE x(a, b); INSERT INTO x SELECT a, b FROM u; SELECT a, count(*), group_concat(b, ',') \
     FROM x GROUP BY a HAVING a > 1;",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<9) SELECT n.i, w.s, \
     upper(substr(w.s,2)) FROM n LEFT JOIN w ON w.a=n.i;",
];

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    if !bench.clock.is_full() {
        for launch in LAUNCHES {
            let row = Row::skipped(launch.name(), EXECS, "it takes minutes: --full");
            bench.report.row(row.size_bytes(bytes).variant(launch.variant()));
        }
        return Ok(());
    }
    let folder = Folder::new("afl")?;
    bench.progress.phase("AFL++: compiling SQLite");
    let program = match harness::build(&folder, bench.stop) {
        Ok((program, caveat)) => {
            bench.report.notes.extend(caveat);
            program
        }
        Err(Error::Failed(why)) => {
            for launch in LAUNCHES {
                let row = Row::skipped(launch.name(), EXECS, why.as_str());
                bench.report.row(row.size_bytes(bytes).variant(launch.variant()));
            }
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let target = Target { folder: &folder, program: &program, mib: bytes / MIB };
    let queues = fuzz(bench, &target)?;
    compare(bench, &target, &queues)
}

/// Runs sessions in turns, and returns the queues of the last ones.
fn fuzz(bench: &mut Bench<'_>, target: &Target<'_>) -> Result<Vec<PathBuf>> {
    let seeds = target.folder.path().join("seeds");
    fs::create_dir(&seeds).map_err(during("make a directory"))?;
    for (number, sql) in SEEDS.iter().enumerate() {
        fs::write(seeds.join(number.to_string()), sql).map_err(during("write a seed"))?;
    }
    let mut sessions = LAUNCHES.map(|_| Ok(Vec::new()));
    for round in 1..=ROUNDS {
        for (launch, sessions) in LAUNCHES.into_iter().zip(&mut sessions) {
            let Ok(done) = sessions else { continue };
            bench.progress.phase(&format!("AFL++, round {round} of {ROUNDS}: {}", launch.label()));
            match target.fuzz(launch, &seeds, SECONDS, bench.stop) {
                Ok(session) => done.push(session),
                Err(Error::Failed(why)) => *sessions = Err(why),
                Err(error) => return Err(error),
            }
        }
    }
    let mut queues = Vec::new();
    for (launch, sessions) in LAUNCHES.into_iter().zip(sessions) {
        match sessions {
            Ok(sessions) => {
                push(bench, target, launch, &sessions);
                queues.extend(sessions.into_iter().map(|session| session.queue).next_back());
            }
            Err(why) => {
                bench.report.row(target.row(Row::skipped(launch.name(), EXECS, why), launch))
            }
        }
    }
    Ok(queues)
}

fn push(bench: &mut Bench<'_>, target: &Target<'_>, launch: Launch, sessions: &[Session]) {
    let crashes_and_hangs: f64 = sessions.iter().map(|session| session.crashes_and_hangs).sum();
    let median_of = |value: fn(&Session) -> f64| {
        median(&sessions.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    let values = [
        (EXECS, "p50", median_of(|session| session.execs_per_second), "1/s"),
        ("afl_edges_found", "p50", median_of(|session| session.edges), "count"),
        ("afl_crashes_and_hangs", "value", crashes_and_hangs, "count"),
    ];
    for (metric, stat, value, unit) in values {
        let row = Row::new(launch.name(), metric, stat, value, unit).n(sessions.len() as u64);
        bench.report.row(target.row(row, launch));
    }
}

/// Runs all inputs of the queues natively and under Cowslip.
fn compare(bench: &mut Bench<'_>, target: &Target<'_>, queues: &[PathBuf]) -> Result<()> {
    let corpus = target.folder.path().join("corpus");
    fs::create_dir(&corpus).map_err(during("make a directory"))?;
    for (number, queue) in queues.iter().enumerate() {
        copy(queue, &corpus, number).map_err(during("copy AFL++'s inputs"))?;
    }
    let mut edges = |launch: Launch| -> Result<_> {
        bench.progress.phase(&format!("AFL++, edges of all inputs: {}", launch.label()));
        let edges = target.edges(launch, &corpus, bench.stop)?;
        let distinct = edges.values().flatten().map(|edge| edge.split(':').next());
        let distinct = distinct.collect::<BTreeSet<_>>().len() as f64;
        let row = Row::new(launch.name(), "afl_edges_of_all_inputs", "value", distinct, "count");
        bench.report.row(row.n(edges.len() as u64).size_bytes(EDGES_BYTES));
        Ok(edges)
    };
    let (native, ours) = (edges(Launch::Stock)?, edges(Launch::Cowslip)?);
    if native.is_empty() {
        return Err(Error::Failed("afl-showmap ran no input".to_owned()));
    }
    let others = native.iter().filter(|(input, taken)| ours.get(*input) != Some(taken)).count();
    let row = Row::new("cowslip", OTHER_EDGES, "value", others as f64, "count");
    bench.report.row(row.n(native.len() as u64).size_bytes(EDGES_BYTES));
    Ok(())
}

fn copy(queue: &Path, corpus: &Path, number: usize) -> std::io::Result<()> {
    for input in fs::read_dir(queue)? {
        let input = input?;
        if input.file_type()?.is_file() {
            let name = format!("{number} {}", input.file_name().display());
            fs::copy(input.path(), corpus.join(name))?;
        }
    }
    Ok(())
}

impl Target<'_> {
    fn row(&self, row: Row, launch: Launch) -> Row {
        row.size_bytes(self.mib * MIB).variant(launch.variant())
    }
}

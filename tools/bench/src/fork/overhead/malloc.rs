//! A program that only allocates, resizes and frees.

use crate::report::Row;
use cowslip::units::ByteCount;

use super::{Bench, LEAST_ROUNDS, MOST_ROUNDS};
use crate::error::{Error, Result};
use crate::host::warm;
use crate::program::{Folder, Launch};
use crate::rows::push_durations;

/// Time for the same work.
pub(in crate::fork) const METRIC: &str = "overhead_malloc";
/// Numbers of threads, and their variants.
pub(in crate::fork) const THREADS: [(&str, &str); 2] = [("1", "1 thread"), ("2", "2 threads")];

const SOURCE: &str = include_str!("churn.c");
const NEEDS: &str = "apt-get install gcc libc6-dev";
/// Operations of each thread.
const OPS: &str = "10000000";
const LAUNCHES: [Launch; 4] =
    [Launch::Stock, Launch::StockThp, Launch::Cowslip, Launch::WithMalloc];
/// Free memory that a program may take.
const MEMORY: ByteCount = ByteCount::mib(64);

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let folder = Folder::new("malloc")?;
    let program = match folder.compile("churn", SOURCE, &["-lpthread"], NEEDS, bench.stop) {
        Err(Error::Failed(why)) => {
            for launch in LAUNCHES {
                let row = Row::skipped(launch.name(), METRIC, why.as_str());
                bench.report.row(row.variant(launch.variant()));
            }
            return Ok(());
        }
        done => done?,
    };
    for ((threads, variant), share) in THREADS.into_iter().zip([0.3, 0.4]) {
        let mut logs = LAUNCHES.map(|_| Vec::new());
        for round in bench.clock.rounds(share, LEAST_ROUNDS, MOST_ROUNDS) {
            let round = round + 1;
            bench.progress.phase(&format!("malloc, {variant}: round {round} of {MOST_ROUNDS}"));
            for (launch, log) in LAUNCHES.into_iter().zip(&mut logs) {
                warm(MEMORY, bench.stop)?;
                let mut command = launch.command(&program)?;
                let printed = folder.finish(command.args([threads, OPS]), bench.stop)?;
                let seconds: f64 = printed.trim().parse().map_err(|_| {
                    Error::Failed(format!("the malloc benchmark printed {printed:?}"))
                })?;
                log.push(seconds * 1e9);
            }
        }
        for (launch, log) in LAUNCHES.into_iter().zip(&logs) {
            let variant = match launch.variant() {
                None => variant.to_owned(),
                Some(malloc) => format!("{variant}, {malloc}"),
            };
            let row = Row::new(launch.name(), METRIC, "", 0.0, "ns").variant(variant.as_str());
            push_durations(bench.report, &row, log);
        }
    }
    Ok(())
}

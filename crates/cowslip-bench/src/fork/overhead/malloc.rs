//! A program that only allocates, resizes and frees.

use cowslip_report::Row;

use super::{Bench, ROUNDS};
use crate::error::{Error, Result};
use crate::program::{Folder, Way};
use crate::rows::push_durations;

/// Time for the same work.
pub(in crate::fork) const METRIC: &str = "overhead_malloc";
/// Threads, and the variant each becomes.
pub(in crate::fork) const THREADS: [(&str, &str); 2] = [("1", "1 thread"), ("2", "2 threads")];

const SOURCE: &str = include_str!("churn.c");
const NEEDS: &str = "apt-get install gcc libc6-dev";
/// Operations of each thread.
const OPS: &str = "10000000";
const WAYS: [Way; 3] = [Way::Stock, Way::Cowslip, Way::WithMalloc];

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let folder = Folder::new("malloc")?;
    let program = match folder.compile("churn", SOURCE, &["-lpthread"], NEEDS, bench.stop) {
        Err(Error::Failed(why)) => {
            for way in WAYS {
                let row = Row::skipped(way.rival(), METRIC, why.as_str());
                bench.report.row(row.variant(way.variant()));
            }
            return Ok(());
        }
        done => done?,
    };
    for (threads, variant) in THREADS {
        let mut logs = WAYS.map(|_| Vec::new());
        for round in 1..=ROUNDS {
            bench.progress.phase(&format!("malloc, {variant}: round {round} of {ROUNDS}"));
            for (way, log) in WAYS.into_iter().zip(&mut logs) {
                let mut command = way.command(&program, bench.libraries)?;
                let printed = folder.finish(command.args([threads, OPS]), bench.stop)?;
                let seconds: f64 = printed.trim().parse().map_err(|_| {
                    Error::Failed(format!("the malloc benchmark printed {printed:?}"))
                })?;
                log.push(seconds * 1e9);
            }
        }
        for (way, log) in WAYS.into_iter().zip(&logs) {
            let variant = match way.variant() {
                None => variant.to_owned(),
                Some(malloc) => format!("{variant}, {malloc}"),
            };
            let row = Row::new(way.rival(), METRIC, "", 0.0, "ns").variant(variant.as_str());
            push_durations(bench.report, &row, log);
        }
    }
    Ok(())
}

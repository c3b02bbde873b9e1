//! What a fault takes: plain, under perf, under `cowslip trace`, in turns.

use std::process::Command;

use cowslip_report::Row;

use super::toucher::{Toucher, Work};
use super::{Bench, COWSLIP, PERF};
use crate::error::{Error, Result};
use crate::rows::push_durations;

pub(super) const METRIC: &str = "fault_time";
pub(super) const PLAIN: &str = "plain";
/// A quarter of a million faults.
const WORK: Work = Work { threads: 1, rounds: 16, period_ns: 0 };
const MOST_ROUNDS: u32 = 15;

pub(super) fn measure(bench: &mut Bench<'_>, toucher: &Toucher, runs: u32) -> Result<()> {
    let rounds = runs.min(MOST_ROUNDS);
    let (trace, numbers) = (toucher.file("overhead.trace"), toucher.file("overhead.json"));
    let data = toucher.file("perf.data");
    let commands: [(&str, Result<Command>); 3] = [
        (PLAIN, Ok(toucher.plain(WORK))),
        (PERF, Ok(toucher.under_perf(WORK, &data))),
        (COWSLIP, toucher.under_cowslip(WORK, &trace, &numbers, &[])),
    ];
    let mut lanes = commands.map(|(rival, command)| (rival, command, Vec::new()));
    for round in 1..=rounds {
        bench.progress.phase(&format!("time per fault, round {round} of {rounds}"));
        for (_, command, seen) in &mut lanes {
            let Ok(runner) = command else { continue };
            match toucher.run(runner, bench.stop) {
                Ok(touched) => seen.push(touched.ns as f64 / touched.faults as f64),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => *command = Err(error),
            }
        }
    }
    for (rival, command, seen) in lanes {
        match command {
            Ok(_) => {
                push_durations(bench.report, &Row::new(rival, METRIC, "", 0.0, "ns"), &seen);
            }
            Err(error) => bench.report.row(Row::skipped(rival, METRIC, error.to_string())),
        }
    }
    Ok(())
}

//! Time of a fault: plain, under perf, under `cowslip trace`, in turns.

use std::process::Command;

use crate::report::Row;

use super::toucher::{Toucher, Work};
use super::{Bench, COWSLIP, PERF, SIZE};
use crate::error::{Error, Result};
use crate::host::warm;
use crate::rows::push_durations;

pub(super) const METRIC: &str = "fault_time";
pub(super) const PLAIN: &str = "plain";
/// A quarter of a million faults.
const WORK: Work = Work { threads: 1, rounds: 16, period_ns: 0 };
const LEAST_ROUNDS: u32 = 5;
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
    let mut entries = commands.map(|(name, command)| (name, command, Vec::new()));
    for round in bench.clock.rounds(1.0, LEAST_ROUNDS.min(rounds), rounds) {
        let round = round + 1;
        bench.progress.phase(&format!("time per fault, round {round} of {rounds}"));
        for (_, command, seen) in &mut entries {
            let Ok(runner) = command else { continue };
            warm(SIZE, bench.stop)?;
            match toucher.run(runner, bench.stop) {
                Ok(touched) => seen.push(touched.ns as f64 / touched.faults as f64),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => *command = Err(error),
            }
        }
    }
    for (name, command, seen) in entries {
        match command {
            Ok(_) => {
                push_durations(bench.report, &Row::new(name, METRIC, "", 0.0, "ns"), &seen);
            }
            Err(error) => bench.report.row(Row::skipped(name, METRIC, error.to_string())),
        }
    }
    Ok(())
}

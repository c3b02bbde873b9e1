//! Fork by the library's own call, [`cowslip::fork`], beside mechanisms that are no program of their own.
//!
//! All of it in this process, a fork of which without any memory takes several times as long as one of a small
//! program: see [`super::latency`] for those, and for what *first*, *again* and *in a row* are. Not every
//! rival gives a child with the memory as it was: uffd-wp makes no child, memfd-private's sees later writes,
//! vfork+exec's has none of it.

use std::sync::atomic::Ordering::Relaxed;

use cowslip_report::Row;

use super::{Bench, GIB, MIB, Options};
use crate::error::Result;
use crate::field::{BySize, Field, Lane};
use crate::rivals::Kind;
use crate::rows::push_durations;

pub(super) const METRIC: &str = "fork_in_bench";
pub(super) const FIRST: &str = "first";
pub(super) const AGAIN: &str = "again";
const IN_A_ROW: &str = "in a row";

/// Neighbours share memory that holds only two, so those whose ratio is promised come first.
const KINDS: [Kind; 6] = [
    Kind::Fork4k,
    Kind::CowslipFork,
    Kind::ForkThp,
    Kind::UffdWp4k,
    Kind::MemfdPrivate,
    Kind::VforkExec,
];
const SIZES: [u64; 8] = [2 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB, 8 * GIB];
/// Forks while an earlier child lives, for each first one.
const AGAIN_RUNS: u32 = 5;
const IN_A_ROW_RUNS: u32 = 20;
const MOST_RUNS_ABOVE_1_GIB: u32 = 3;
/// Pages written before each fork.
const WRITTEN_PAGES: usize = 10;

#[derive(Default)]
struct Log {
    first: Vec<f64>,
    again: Vec<f64>,
    in_a_row: Vec<f64>,
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let by_size = BySize {
        doing: "fork",
        sizes: &SIZES,
        kinds: &KINDS,
        most_runs_above_1_gib: MOST_RUNS_ABOVE_1_GIB,
    };
    by_size.each(bench, options, measure_together)
}

pub(super) fn measure_together(
    bench: &mut Bench<'_>,
    kinds: &[Kind],
    size: u64,
    runs: u32,
) -> Result<()> {
    let mut field = Field::open(bench, kinds, METRIC, size as usize, Log::default)?;
    // The first run is to warm up.
    for run in 0..=runs {
        bench.progress.set(u64::from(run), u64::from(runs));
        field.each(bench, |lane, stop| {
            lane.rival.memory().touch(stop)?;
            let first = lane.rival.snapshot()?.as_nanos() as f64;
            let mut again = Vec::new();
            for fork in 0..AGAIN_RUNS {
                write_some(lane, fork);
                again.push(lane.rival.snapshot()?.as_nanos() as f64);
            }
            let in_a_row = fork_in_a_row(lane);
            if run > 0 {
                lane.log.first.push(first);
                lane.log.again.extend(again);
                lane.log.in_a_row.extend(in_a_row);
            }
            lane.rival.release()
        })?;
    }
    for (kind, log) in field.finish() {
        let variants = [(FIRST, &log.first), (AGAIN, &log.again), (IN_A_ROW, &log.in_a_row)];
        for (variant, ns) in variants.into_iter().filter(|(_, ns)| !ns.is_empty()) {
            let row = Row::new(kind.rival(), METRIC, "", 0.0, "ns");
            push_durations(bench.report, &row.size_bytes(size).variant(variant), ns);
        }
    }
    Ok(())
}

/// Nothing for a mechanism that makes no child.
fn fork_in_a_row(lane: &mut Lane<Log>) -> Vec<f64> {
    let mut paused_ns = Vec::new();
    for fork in 0..IN_A_ROW_RUNS {
        write_some(lane, fork);
        match lane.rival.answer(|_| [0; 3]) {
            Ok((_, paused)) => paused_ns.push(paused.as_nanos() as f64),
            Err(_) => break,
        }
    }
    paused_ns
}

/// Pages spread over the memory, as a program between two forks would.
fn write_some(lane: &Lane<Log>, fork: u32) {
    let memory = lane.rival.memory();
    let step = (memory.pages() / WRITTEN_PAGES).max(1);
    for page in (0..memory.pages()).step_by(step) {
        memory.page(page).store(u64::from(fork), Relaxed);
    }
}

/// Bytes that a line of `/proc/PID/status` says in kB; 0 without it.
pub(super) fn kib_of(status: &str, field: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_status() {
        let status = "Name:\tx\nVmPTE:\t    2096 kB\n";
        assert_eq!(kib_of(status, "VmPTE:"), 2096.0 * 1024.0);
        assert_eq!(kib_of(status, "VmRSS:"), 0.0);
    }
}

//! Fork by the library's own call, [`cowslip::fork`], beside mechanisms that are no program of their own.
//!
//! All of them run in this process. A fork of it without any memory takes several times as long as one of a small
//! program: see [`super::latency`] for those, and for the meaning of *first*, *again* and *in a row*. Not every
//! mechanism gives a child with the memory as it was: uffd-wp makes no child, memfd-private's sees later writes,
//! vfork+exec's has none of it.

use std::sync::atomic::Ordering::Relaxed;

use crate::report::Row;
use cowslip::units::ByteCount;

use super::{Bench, GIB, MIB, Options};
use crate::clock::Rounds;
use crate::error::Result;
use crate::host::warm;
use crate::interleaved::{BySize, Entry, Interleaved};
use crate::mechanisms::MechanismKind;
use crate::rows::push_durations;

pub(super) const METRIC: &str = "fork_in_bench";
pub(super) const FIRST: &str = "first";
pub(super) const AGAIN: &str = "again";
const IN_A_ROW: &str = "in a row";

/// Neighbours share memory that holds only two, so the pairs with promised ratios come first.
const KINDS: [MechanismKind; 6] = [
    MechanismKind::Fork4k,
    MechanismKind::CowslipFork,
    MechanismKind::ForkThp,
    MechanismKind::UffdWp4k,
    MechanismKind::MemfdPrivate,
    MechanismKind::VforkExec,
];
const ALL_SIZES: [u64; 8] =
    [2 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB, 8 * GIB];
const SIZES: [u64; 2] = [2 * MIB, GIB];
/// Forks while an earlier child lives, for each first one.
const AGAIN_RUNS: u32 = 5;
const IN_A_ROW_RUNS: u32 = 20;
const LEAST_ROUNDS: u32 = 2;
/// Free memory that forks may take, page tables above all.
const TABLES: ByteCount = ByteCount::mib(32);
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
        all_sizes: &ALL_SIZES,
        sizes: &SIZES,
        kinds: &KINDS,
        least_rounds: LEAST_ROUNDS,
    };
    by_size.each(bench, options, measure_together)
}

pub(super) fn measure_together(
    bench: &mut Bench<'_>,
    kinds: &[MechanismKind],
    size: u64,
    rounds: Rounds,
) -> Result<()> {
    let mut entries =
        Interleaved::open(bench, kinds, |_| METRIC.to_owned(), size as usize, Log::default)?;
    // The first round warms up.
    for round in rounds {
        entries.each(bench, |entry, stop| {
            entry.mechanism.memory().touch(stop)?;
            warm(TABLES, stop)?;
            let first = entry.mechanism.snapshot()?.as_nanos() as f64;
            let mut again = Vec::new();
            for fork in 0..AGAIN_RUNS {
                write_some(entry, fork);
                again.push(entry.mechanism.snapshot()?.as_nanos() as f64);
            }
            let in_a_row = fork_in_a_row(entry);
            if round > 0 {
                entry.log.first.push(first);
                entry.log.again.extend(again);
                entry.log.in_a_row.extend(in_a_row);
            }
            entry.mechanism.release()
        })?;
    }
    for (kind, log) in entries.finish() {
        let variants = [(FIRST, &log.first), (AGAIN, &log.again), (IN_A_ROW, &log.in_a_row)];
        for (variant, ns) in variants.into_iter().filter(|(_, ns)| !ns.is_empty()) {
            let row = Row::new(kind.name(), METRIC, "", 0.0, "ns");
            push_durations(bench.report, &row.size_bytes(size).variant(variant), ns);
        }
    }
    Ok(())
}

/// Empty for a mechanism that makes no child.
fn fork_in_a_row(entry: &mut Entry<Log>) -> Vec<f64> {
    let mut paused_ns = Vec::new();
    for fork in 0..IN_A_ROW_RUNS {
        write_some(entry, fork);
        match entry.mechanism.answer(|_| [0; 3]) {
            Ok((_, paused)) => paused_ns.push(paused.as_nanos() as f64),
            Err(_) => break,
        }
    }
    paused_ns
}

/// Writes pages spread over the memory, like a program between two forks.
fn write_some(entry: &Entry<Log>, fork: u32) {
    let memory = entry.mechanism.memory();
    let step = (memory.pages() / WRITTEN_PAGES).max(1);
    for page in (0..memory.pages()).step_by(step) {
        memory.page(page).store(u64::from(fork), Relaxed);
    }
}

/// Bytes in a kB line of `/proc/PID/status`; 0 without the line.
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

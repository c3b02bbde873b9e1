//! How long a snapshot holds the program up, by the size of its memory.

use cowslip_report::{Report, Row};

use super::{Bench, GIB, MIB, Options};
use crate::error::Result;
use crate::field::{BySize, Field};
use crate::rivals::Kind;
use crate::rows::push_durations;

/// How long the caller waits.
pub(super) const METRIC: &str = "pause";
/// How long the other threads could be held up.
const HELD: &str = "pause_of_threads";

/// Neighbours share memory that holds only two, so those whose ratio is promised come first.
const KINDS: [Kind; 7] = [
    Kind::Fork4k,
    Kind::Cowslip,
    Kind::CowslipFork,
    Kind::ForkThp,
    Kind::ForkHugetlb,
    Kind::UffdWp4k,
    Kind::UffdWpThp,
];

const SIZES: [u64; 7] = [64 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB, 8 * GIB];

#[derive(Default)]
struct Log {
    paused: Vec<f64>,
    held: Vec<f64>,
}

const MOST_RUNS_ABOVE_1_GIB: u32 = 5;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let by_size = BySize {
        doing: "pause",
        sizes: &SIZES,
        kinds: &KINDS,
        most_runs_above_1_gib: MOST_RUNS_ABOVE_1_GIB,
    };
    by_size.each(bench, options, measure_together)
}

fn measure_together(bench: &mut Bench<'_>, kinds: &[Kind], size: u64, runs: u32) -> Result<()> {
    let mut field = Field::open(bench, kinds, METRIC, size as usize, Log::default)?;
    // The first run is to warm up.
    for run in 0..=runs {
        bench.progress.set(u64::from(run), u64::from(runs));
        field.each(bench, |lane, stop| {
            lane.rival.memory().touch(stop)?;
            let paused = lane.rival.snapshot()?;
            if run > 0 {
                lane.log.paused.push(paused.as_nanos() as f64);
                lane.log.held.extend(lane.rival.held().map(|held| held.as_nanos() as f64));
            }
            lane.rival.release()
        })?;
    }
    for (kind, log) in field.finish() {
        let metric = if kind == Kind::CowslipFork { "pause_fork" } else { METRIC };
        for (metric, ns) in [(metric, &log.paused), (HELD, &log.held)] {
            let row = Row::new(kind.rival(), metric, "", 0.0, "ns");
            push_durations(bench.report, &row.size_bytes(size).variant(kind.variant()), ns);
        }
    }
    Ok(())
}

/// Seed 002's figures: QEMU, x86_64 default configuration, 512 MB.
pub(super) fn push_published(report: &mut Report) {
    for (variant, ms) in [("fork", 10.0), ("COW PTE", 0.625), ("uffd-wp register", 3.9)] {
        let row = Row::new("seed-002", METRIC, "value", ms * 1e6, "ns");
        report.row(row.size_bytes(512 * MIB).variant(variant));
    }
}

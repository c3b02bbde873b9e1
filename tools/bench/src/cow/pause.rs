//! Time that a snapshot holds the program up, by the size of its memory.

use crate::report::{Report, Row};
use cowslip::units::ByteCount;

use super::{Bench, GIB, MIB, Options};
use crate::clock::Rounds;
use crate::error::Result;
use crate::host::warm;
use crate::interleaved::{BySize, Interleaved};
use crate::mechanisms::MechanismKind;
use crate::rows::push_durations;

/// Time that the caller waits: `fork_pause`, `view_pause`.
const METRIC: &str = "pause";
/// Longest time that the other threads could be held up.
const HELD: &str = "view_pause_of_threads";

/// Neighbours share memory that holds only two, so the pairs with promised ratios come first.
const KINDS: [MechanismKind; 7] = [
    MechanismKind::Fork4k,
    MechanismKind::Cowslip,
    MechanismKind::CowslipFork,
    MechanismKind::ForkThp,
    MechanismKind::ForkHugetlb,
    MechanismKind::UffdWp4k,
    MechanismKind::UffdWpThp,
];

const ALL_SIZES: [u64; 7] = [64 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB, 8 * GIB];
const SIZES: [u64; 3] = [64 * MIB, GIB, 8 * GIB];

#[derive(Default)]
struct Log {
    paused: Vec<f64>,
    held: Vec<f64>,
}

const LEAST_ROUNDS: u32 = 3;
/// Free memory that a snapshot may take for page tables; a fork of base pages needs most.
const TABLES: ByteCount = ByteCount::mib(32);

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let by_size = BySize {
        doing: "pause",
        all_sizes: &ALL_SIZES,
        sizes: &SIZES,
        kinds: &KINDS,
        least_rounds: LEAST_ROUNDS,
    };
    by_size.each(bench, options, measure_together)
}

fn measure_together(
    bench: &mut Bench<'_>,
    kinds: &[MechanismKind],
    size: u64,
    rounds: Rounds,
) -> Result<()> {
    let mut entries =
        Interleaved::open(bench, kinds, |kind| kind.metric(METRIC), size as usize, Log::default)?;
    // The first round warms up.
    for round in rounds {
        entries.each(bench, |entry, stop| {
            entry.mechanism.memory().touch(stop)?;
            warm(TABLES, stop)?;
            let paused = entry.mechanism.snapshot()?;
            if round > 0 {
                entry.log.paused.push(paused.as_nanos() as f64);
                entry.log.held.extend(entry.mechanism.held().map(|held| held.as_nanos() as f64));
            }
            entry.mechanism.release()
        })?;
    }
    for (kind, log) in entries.finish() {
        for (metric, ns) in [(&*kind.metric(METRIC), &log.paused), (HELD, &log.held)] {
            let row = Row::new(kind.name(), metric, "", 0.0, "ns");
            push_durations(bench.report, &row.size_bytes(size).variant(kind.variant()), ns);
        }
    }
    Ok(())
}

/// Lin 2022's figures (see [`super`]): QEMU, x86_64 default configuration, 512 MB.
pub(super) fn push_published(report: &mut Report) {
    for (metric, variant, ms) in [
        ("fork_pause", "fork", 10.0),
        ("fork_pause", "COW PTE", 0.625),
        ("view_pause", "uffd-wp register", 3.9),
    ] {
        let row = Row::new("Lin 2022", metric, "value", ms * 1e6, "ns");
        report.row(row.size_bytes(512 * MIB).variant(variant));
    }
}

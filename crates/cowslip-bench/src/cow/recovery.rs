//! How long until memory is on huge pages again after a snapshot under which some pages were written:
//! Cowslip's thaw against `MADV_COLLAPSE` of what fork left. Both after a fork.

use std::time::Instant;

use cowslip::units::ByteCount;
use cowslip_report::Row;

use super::{Bench, Options, write_some};
use crate::error::Result;
use crate::host::warm;
use crate::mechanisms::{Forking, FreezingFork, Mechanism, MechanismKind, Pages};
use crate::rows::push_durations;

pub(super) const METRIC: &str = "huge_recovery";
/// Until every 2 MiB is mapped huge again.
pub(super) const WHOLE: &str = "whole";
/// The thaw alone, by the arena's own counter.
const THAW: &str = "thaw";

const LEAST_ROUNDS: u32 = 3;
const MOST_ROUNDS: u32 = 5;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    bench.progress.phase("recovery of huge pages");
    let mut cowslip = FreezingFork::new(bytes)?;
    let mut forking = Forking::new(bytes, Pages::Huge)?;
    let (mut thawed, mut thaws, mut collapsed) = (Vec::new(), Vec::new(), Vec::new());
    // The first round is to warm up.
    for round in bench.clock.rounds(1.0, 1 + LEAST_ROUNDS, 1 + MOST_ROUNDS) {
        for mechanism in [&mut cowslip as &mut dyn Mechanism, &mut forking] {
            mechanism.memory().touch(bench.stop)?;
            mechanism.snapshot()?;
            write_some(mechanism.memory(), u64::from(round), bench.stop)?;
        }
        // What is copied, and what huge pages are made of.
        warm(ByteCount(bytes as u64), bench.stop)?;
        let began = Instant::now();
        cowslip.release()?;
        cowslip.memory().read_chunks();
        let to_huge = began.elapsed();

        forking.release()?;
        let began = Instant::now();
        forking.renew()?;
        forking.memory().read_chunks();
        if round > 0 {
            collapsed.push(began.elapsed().as_nanos() as f64);
            thawed.push(to_huge.as_nanos() as f64);
            thaws.push(cowslip.arena().metrics().last_thaw_ns as f64);
        }
    }
    let results = [
        (MechanismKind::ForkThp, WHOLE, &collapsed),
        (MechanismKind::Cowslip, WHOLE, &thawed),
        (MechanismKind::Cowslip, THAW, &thaws),
    ];
    for (kind, variant, ns) in results {
        let row = Row::new(kind.name(), METRIC, "", 0.0, "ns").size_bytes(bytes as u64);
        push_durations(bench.report, &row.variant(variant), ns);
    }
    Ok(())
}

//! How long until memory is on huge pages again after a snapshot under which some pages were written:
//! Cowslip's thaw against `MADV_COLLAPSE` of what fork left. Both after a fork.

use std::time::{Duration, Instant};

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
        let to_huge = recover(bench, &mut cowslip, round)?;
        let collapsing = recover(bench, &mut forking, round)?;
        if round > 0 {
            thawed.push(to_huge.as_nanos() as f64);
            collapsed.push(collapsing.as_nanos() as f64);
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

/// From the end of a fork's child on. One mechanism at a time: while another's child lives, it holds Cowslip's memory too.
fn recover(bench: &Bench<'_>, mechanism: &mut dyn Mechanism, round: u32) -> Result<Duration> {
    mechanism.memory().touch(bench.stop)?;
    mechanism.snapshot()?;
    write_some(mechanism.memory(), u64::from(round), bench.stop)?;
    // What is copied, and what huge pages are made of.
    warm(ByteCount(mechanism.memory().bytes() as u64), bench.stop)?;
    let began = Instant::now();
    mechanism.release()?;
    mechanism.renew()?;
    mechanism.memory().read_chunks();
    Ok(began.elapsed())
}

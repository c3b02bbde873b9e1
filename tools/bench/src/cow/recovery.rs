//! Time until memory is on huge pages again after a snapshot with some pages written: Cowslip's thaw against
//! `MADV_COLLAPSE` of the pages that fork left. Both after a fork.

use std::time::{Duration, Instant};

use crate::report::Row;
use cowslip::units::ByteCount;

use super::{Bench, Options, write_some};
use crate::error::Result;
use crate::host::warm;
use crate::mechanisms::{Forking, FreezingFork, Mechanism, MechanismKind, Pages};
use crate::rows::push_durations;

pub(super) const METRIC: &str = "huge_recovery";
/// Time until every 2 MiB is mapped huge again.
pub(super) const WHOLE: &str = "whole";
/// Time of the thaw alone, by the arena's own counter.
const THAW: &str = "thaw";

const LEAST_ROUNDS: u32 = 3;
const MOST_ROUNDS: u32 = 5;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    bench.progress.phase("recovery of huge pages");
    let mut cowslip = FreezingFork::new(bytes)?;
    let mut forking = Forking::new(bytes, Pages::Huge)?;
    let (mut thawed, mut thaws, mut collapsed) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
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

/// Time from the end of a fork's child on. Only one mechanism has a child: another's child would hold Cowslip's memory
/// too.
fn recover(bench: &Bench<'_>, mechanism: &mut dyn Mechanism, round: u32) -> Result<Duration> {
    mechanism.memory().touch(bench.stop)?;
    mechanism.snapshot()?;
    write_some(mechanism.memory(), u64::from(round), bench.stop)?;
    // Memory for the copies, and for the new huge pages.
    warm(ByteCount(mechanism.memory().bytes() as u64), bench.stop)?;
    let began = Instant::now();
    mechanism.release()?;
    mechanism.renew()?;
    mechanism.memory().read_chunks();
    Ok(began.elapsed())
}

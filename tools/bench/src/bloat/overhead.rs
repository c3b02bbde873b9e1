//! Overhead of the daemon: its own processor time, and the slowdown of a process that works, in turns with and without
//! it.

use std::time::{Duration, Instant};

use crate::report::Row;

use super::daemon::Daemon;
use super::process::{Command, Said};
use super::settings::System;
use super::target::{Target, mapped, sleep};
use super::{Bench, Options, Result};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::rows::{median, median_bounds};

/// Share of one core.
pub(super) const CPU: &str = "daemon_cpu";
/// Time of the same work with the daemon over that without.
pub(super) const SLOWDOWN: &str = "busy_slowdown";
pub(super) const BUSY: &str = "busy process";
const IDLE: &str = "idle process";
/// A process whose memory is still on base pages.
const PROMOTED: &str = "process that is promoted";

/// Two intervals between looks.
const WATCHED: Duration = Duration::from_secs(10);
/// Each pair is a turn with the daemon and one without.
const MOST_PAIRS: u32 = 50;
const LEAST_PAIRS: u32 = 25;
const TURN_MS: u64 = 200;
/// One look a turn, or fewer if they exceed their budget.
const LOOKS: &str = "interval_ms = 200\n";

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let stop = bench.stop;
    let mut target = Target::filled(bytes, system, stop)?;
    let variants: &[&str] = if bench.clock.is_full() { &[PROMOTED, IDLE, BUSY] } else { &[BUSY] };
    let mut is_promoted = false;
    for &variant in variants {
        let is_busy = variant == BUSY;
        if variant != PROMOTED && !is_promoted {
            // Promotes the remaining memory, after which the daemon only has to look.
            Daemon::start(&[target.pid()], &["--once"], "")?.wait(stop)?;
            is_promoted = true;
        }
        bench.progress.phase(&format!("overhead: the daemon beside a {variant}"));
        if is_busy {
            target.ask(Command::Work { ms: WATCHED.as_millis() as u64 + 1000 })?;
        }
        let daemon = Daemon::start(&[target.pid()], &[], "")?;
        let began = Instant::now();
        sleep(WATCHED, stop)?;
        let share = daemon.cpu_ns()? as f64 / began.elapsed().as_nanos() as f64;
        if is_busy {
            target.answer(stop)?;
        }
        let deeds = daemon.end(stop)?;
        let row = Row::new("cowslip", CPU, "value", share, "ratio").size_bytes(bytes);
        bench.report.row(row.variant(variant).n(deeds.promotions));
    }
    slowdown(bench, &mut target, bytes)?;
    let like = Row::skipped("cowslip", SLOWDOWN, "").size_bytes(bytes);
    target.push_changed(bench, &like)
}

/// Measures a process that is huge already, with one daemon that is stopped every other turn.
fn slowdown(bench: &mut Bench<'_>, target: &mut Target, bytes: u64) -> Result<()> {
    let stop = bench.stop;
    let huge = mapped(target.pid())?.coverage();
    let daemon = Daemon::start(&[target.pid()], &[], LOOKS)?;
    // Keeps the cost of starting out of the cost of running.
    one_turn(&daemon, target, true, stop)?;
    let cpu_before = daemon.cpu_ns()?;
    let mut ratios = Vec::new();
    bench.progress.phase("overhead: a busy process with and without the daemon");
    for pair in bench.clock.rounds(1.0, LEAST_PAIRS, MOST_PAIRS) {
        bench.progress.set(pair.into(), MOST_PAIRS.into());
        // The order alternates, which spreads a drift of the machine's speed over both.
        let first_with = pair % 2 == 0;
        let first = one_turn(&daemon, target, first_with, stop)?;
        let second = one_turn(&daemon, target, !first_with, stop)?;
        ratios.push(if first_with { first / second } else { second / first });
    }
    let cpu_ns = daemon.cpu_ns()? - cpu_before;
    let pairs = ratios.len();
    daemon.end(stop)?;
    let row = |stat, value| {
        Row::new("cowslip", SLOWDOWN, stat, value, "ratio").size_bytes(bytes).n(pairs as u64)
    };
    bench.report.row(row("p50", median(&ratios).unwrap_or(f64::NAN)));
    if let Some((low, high)) = median_bounds(&ratios) {
        bench.report.row(row("p50_ci95_low", low));
        bench.report.row(row("p50_ci95_high", high));
    }
    bench.report.notes.push(format!(
        "overhead: the slowdown is the median of {pairs} pairs of turns of {TURN_MS} ms, with and without the daemon, \
         and is judged by that, not by its 95 % confidence interval; {:.0} % of the busy process was huge, and the daemon \
         used {:.2} % of a core in the turns with it",
        huge * 100.0,
        cpu_ns as f64 / (pairs as f64 * TURN_MS as f64 * 1e4)
    ));
    Ok(())
}

/// Nanoseconds a step.
fn one_turn(daemon: &Daemon, target: &mut Target, with: bool, stop: &Interrupt) -> Result<f64> {
    daemon.stop(!with)?;
    let said = target.tell(Command::Work { ms: TURN_MS }, stop);
    // Resumes the daemon even after a failure: a stopped process cannot be asked to end.
    daemon.stop(false)?;
    match said? {
        Said::Worked { steps, ns } => Ok(ns as f64 / steps as f64),
        other => Err(Error::Failed(format!("it said {other:?} of its work"))),
    }
}

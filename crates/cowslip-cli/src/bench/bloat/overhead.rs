//! What the daemon costs: processor time of its own, and of a process that works, in turns with and without it.

use std::time::{Duration, Instant};

use super::daemon::Daemon;
use super::process::{Command, Said};
use super::settings::System;
use super::target::{Target, mapped, sleep};
use super::{Bench, Options, Result};
use crate::bench::error::Error;
use crate::bench::rows::median;
use crate::bench::stop::Stop;
use crate::output::report::Row;

/// Of one core.
pub(super) const CPU: &str = "daemon_cpu";
/// Time of the same work with the daemon over that without.
pub(super) const SLOWDOWN: &str = "busy_slowdown";
pub(super) const BUSY: &str = "busy process";
const IDLE: &str = "idle process";
/// Whose memory is on base pages still.
const PROMOTED: &str = "process that is promoted";

const WATCHED: Duration = Duration::from_secs(15);
const STARTING: Duration = Duration::from_millis(700);
const TURNS: u32 = 10;
const TURN_MS: u64 = 1500;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let stop = bench.stop;
    let mut target = Target::filled(bytes, system, stop)?;
    for variant in [PROMOTED, IDLE, BUSY] {
        let is_busy = variant == BUSY;
        if variant == IDLE {
            // What is left of it: from here on there is nothing to do but to look.
            Daemon::start(&[target.pid()], &["--once"], "")?.wait(stop)?;
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

/// Of a process that is huge already.
fn slowdown(bench: &mut Bench<'_>, target: &mut Target, bytes: u64) -> Result<()> {
    let stop = bench.stop;
    let huge = mapped(target.pid())?.coverage();
    let mut ratios = Vec::new();
    for turn in 0..TURNS {
        bench.progress.phase("overhead: a busy process with and without the daemon");
        bench.progress.set(turn.into(), TURNS.into());
        // Who is first changes, so that a drift of the machine's speed is nobody's.
        let first_with = turn % 2 == 0;
        let first = one_turn(target, first_with, stop)?;
        let second = one_turn(target, !first_with, stop)?;
        ratios.push(if first_with { first / second } else { second / first });
    }
    let slowdown = median(&ratios).unwrap_or(f64::NAN);
    let row = Row::new("cowslip", SLOWDOWN, "p50", slowdown, "ratio").size_bytes(bytes);
    bench.report.row(row.n(ratios.len() as u64));
    bench.report.notes.push(format!(
        "overhead: {:.0} % of the busy process was huge in the turns with and without the daemon",
        huge * 100.0
    ));
    Ok(())
}

/// Nanoseconds a step.
fn one_turn(target: &mut Target, with: bool, stop: &Stop) -> Result<f64> {
    // Looks as often as its budget allows, so that a turn has one.
    let daemon = match with {
        true => Some(Daemon::start(&[target.pid()], &[], "interval_ms = 500\n")?),
        false => None,
    };
    // What it takes to start is not what it takes to run.
    sleep(STARTING, stop)?;
    let said = target.tell(Command::Work { ms: TURN_MS }, stop)?;
    if let Some(daemon) = daemon {
        daemon.end(stop)?;
    }
    match said {
        Said::Worked { steps, ns } => Ok(ns as f64 / steps as f64),
        other => Err(Error::Failed(format!("it said {other:?} of its work"))),
    }
}

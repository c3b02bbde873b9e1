//! Lost events: at 500,000 faults a second, at full speed, and while the recorder is held up.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::report::Row;
use cowslip_trace::import::import;
use serde_json::Value;

use super::toucher::{Touched, Toucher, Work, parse};
use super::{Bench, COWSLIP, PERF};
use crate::error::{Error, Result, during};
use crate::interrupt::Interrupt;
use crate::program::Running;

pub(super) const LOST: &str = "events_lost";
pub(super) const RATE: &str = "fault_rate";
pub(super) const UNACCOUNTED: &str = "faults_unaccounted";
pub(super) const PACED: &str = "500k/s";
pub(super) const FORCED: &str = "forced";
/// Two threads, one fault every 4 us each, for four seconds.
const AT_500K: Work = Work { threads: 2, rounds: 61, period_ns: 4_000 };
const AT_FULL_SPEED: Work = Work { period_ns: 0, ..AT_500K };
/// Room for 1,000 events.
const SMALL_RING: [&str; 2] = ["--ring", "64K"];
const HELD_UP: Duration = Duration::from_millis(500);

pub(super) fn measure(bench: &mut Bench<'_>, toucher: &Toucher) -> Result<()> {
    for (variant, work) in [(PACED, AT_500K), ("full speed", AT_FULL_SPEED)] {
        for name in [COWSLIP, PERF] {
            bench.progress.phase(&format!("events lost, {variant}: {name}"));
            let seen = match name {
                PERF => under_perf(toucher, work, bench.stop),
                _ => under_cowslip(toucher, work, bench.stop),
            };
            push(bench, name, variant, seen)?;
        }
    }
    bench.progress.phase("events lost by force: cowslip");
    let seen = held_up(toucher, AT_500K, bench.stop);
    push(bench, COWSLIP, FORCED, seen)
}

/// Results of one recording.
struct Seen {
    touched: Touched,
    lost: u64,
    /// Faults that happened and are neither in the recording nor among the lost.
    unaccounted: u64,
}

fn push(bench: &mut Bench<'_>, name: &str, variant: &str, seen: Result<Seen>) -> Result<()> {
    let seen = match seen {
        Err(Error::Failed(why)) => {
            bench.report.row(Row::skipped(name, LOST, why).variant(variant));
            return Ok(());
        }
        seen => seen?,
    };
    for (metric, value, unit) in [
        (LOST, seen.lost as f64, "count"),
        (UNACCOUNTED, seen.unaccounted as f64, "count"),
        (RATE, seen.touched.per_second(), "1/s"),
    ] {
        let row = Row::new(name, metric, "value", value, unit).variant(variant);
        bench.report.row(row.n(seen.touched.faults));
    }
    Ok(())
}

fn under_cowslip(toucher: &Toucher, work: Work, stop: &Interrupt) -> Result<Seen> {
    let (trace, numbers) = (toucher.file("lost.trace"), toucher.file("lost.json"));
    let mut command = toucher.under_cowslip(work, &trace, &numbers, &[])?;
    let touched = toucher.run(&mut command, stop)?;
    told(touched, &numbers)
}

/// Stops the recorder for a while, with little room for events meanwhile.
fn held_up(toucher: &Toucher, work: Work, stop: &Interrupt) -> Result<Seen> {
    let (trace, numbers) = (toucher.file("lost.trace"), toucher.file("lost.json"));
    let (out, err) = (toucher.file("forced.out"), toucher.file("forced.err"));
    let mut command = toucher.under_cowslip(work, &trace, &numbers, &SMALL_RING)?;
    let mut running = Running::start(&mut command, &out, &err)?;
    // Four seconds of faults are ahead: the stop is neither at their start nor at their end.
    thread::sleep(HELD_UP);
    signal(&running, "-STOP")?;
    thread::sleep(HELD_UP);
    signal(&running, "-CONT")?;
    if !running.wait(stop)?.success() {
        let said = fs::read_to_string(&err).unwrap_or_default();
        return Err(Error::Failed(format!("cowslip trace failed: {}", said.trim())));
    }
    let printed = fs::read_to_string(&out).map_err(during("read what was printed"))?;
    told(parse(&printed)?, &numbers)
}

fn signal(running: &Running, which: &str) -> Result<()> {
    let status = Command::new("kill").args([which, &running.id().to_string()]).status();
    match status.map_err(during("run kill"))?.success() {
        true => Ok(()),
        false => Err(Error::Failed("cowslip trace ended too early".into())),
    }
}

/// The numbers of `cowslip trace --json`.
fn told(touched: Touched, numbers: &Path) -> Result<Seen> {
    let text = fs::read_to_string(numbers).map_err(during("read the recorder's numbers"))?;
    let numbers: Value = serde_json::from_str(&text).map_err(during("read the numbers"))?;
    let number = |name: &str| {
        numbers[name].as_u64().ok_or_else(|| Error::Failed(format!("no {name} in {text}")))
    };
    let lost = number("lost")?;
    let unaccounted = touched.faults.saturating_sub(number("faults")? + lost);
    Ok(Seen { touched, lost, unaccounted })
}

/// Reads perf's numbers from its file.
fn under_perf(toucher: &Toucher, work: Work, stop: &Interrupt) -> Result<Seen> {
    let data = toucher.file("lost.data");
    let touched = toucher.run(&mut toucher.under_perf(work, &data), stop)?;
    let imported = import(&data, std::io::sink(), &mut |_, _| {});
    let totals = imported.map_err(during("read what perf recorded"))?.totals;
    let unaccounted = touched.faults.saturating_sub(totals.faults + totals.lost);
    Ok(Seen { touched, lost: totals.lost, unaccounted })
}

//! Two equal processes, the second started later, where huge pages are scarce: the share of each, over time.

use std::time::{Duration, Instant};

use crate::report::{Row, Series};

use super::daemon::Daemon;
use super::fragment::Fragmented;
use super::settings::{Settings, System};
use super::target::{KNOWN_BYTES, Target, huge_bytes, sleep};
use super::{Bench, Options, Result};
use crate::error::Error;

/// Distance of the first process from half of both processes' huge pages, relative to that half: the worst of the last
/// third.
pub(super) const METRIC: &str = "fair_share_error";

/// Delay between the starts of the two processes.
const APART: Duration = Duration::from_secs(6);
/// How long both are watched; less in a short run.
const WATCHED: Duration = Duration::from_secs(24);
const SHORT_WATCHED: Duration = Duration::from_secs(12);
const LOOK: Duration = Duration::from_millis(200);
/// Fragmented memory besides both processes' own: compaction needs room.
const ROOM_BYTES: u64 = 3 << 30;
/// Free huge pages in the beginning.
const SCARCE: u64 = 32;
/// One look a second, each with this many regions that need compaction.
const DAEMON: &str = "interval_ms = 1000\nsettle_ms = 1000\ncompactions = 8\n";
/// khugepaged goes through all of the system's processes that it knows once a second.
const KHUGEPAGED: Settings =
    Settings { scan_sleep_ms: 1000, alloc_sleep_ms: 1000, ..Settings::EAGER };

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64 / 2;
    let policies: &[&str] =
        if bench.clock.is_full() { &["cowslip", "khugepaged"] } else { &["cowslip"] };
    for policy in policies {
        bench.progress.phase(&format!("fairness: {policy}"));
        match watch(bench, policy, bytes, system) {
            Ok(()) => {}
            Err(Error::Failed(why)) => {
                bench.report.row(Row::skipped(policy, METRIC, why).size_bytes(bytes));
            }
            Err(error) => return Err(error),
        }
    }
    system.set(&Settings::NEVER)
}

fn watch(bench: &mut Bench<'_>, policy: &str, bytes: u64, system: &System) -> Result<()> {
    let stop = bench.stop;
    let (mut first, mut second) = (Target::known(system, stop)?, Target::known(system, stop)?);
    let fragmented = Fragmented::with(bench, 2 * bytes + ROOM_BYTES, SCARCE)?;
    let daemon = match policy {
        "cowslip" => Some(Daemon::start(&[first.pid(), second.pid()], &[], DAEMON)?),
        _ => None,
    };
    let watched = if bench.clock.is_full() { WATCHED } else { SHORT_WATCHED };
    let began = Instant::now();
    let mut points = [Vec::new(), Vec::new()];
    let mut has_second = false;
    first.fill(bytes, system, stop)?;
    if policy != "cowslip" {
        system.set(&KHUGEPAGED)?;
    }
    while began.elapsed() < APART + watched {
        if !has_second && began.elapsed() >= APART {
            second.fill(bytes, system, stop)?;
            if policy != "cowslip" {
                system.set(&KHUGEPAGED)?;
            }
            has_second = true;
        }
        for (target, points) in [&first, &second].into_iter().zip(&mut points) {
            let huge = huge_bytes(target.pid())? as f64;
            points.push((began.elapsed().as_secs_f64(), huge));
        }
        sleep(LOOK, stop)?;
    }
    system.set(&Settings::NEVER)?;
    if let Some(daemon) = daemon {
        daemon.end(stop)?;
    }
    let [of_first, of_second] =
        [&first, &second].map(|target| huge_bytes(target.pid()).map(|bytes| bytes as f64));
    let (of_first, of_second) = (of_first?, of_second?);
    let at_first = KNOWN_BYTES as f64;
    if of_first <= at_first && of_second <= at_first {
        return Err(Error::Failed("neither got another huge page".to_owned()));
    }
    let late = (APART + watched * 2 / 3).as_secs_f64();
    let both = points[0].iter().zip(&points[1]).filter(|((at, _), _)| *at >= late);
    let unequal = |((_, first), (_, second)): (&(f64, f64), &(f64, f64))| {
        (first - second).abs() / (first + second)
    };
    let error = both.map(unequal).fold(0.0, f64::max);
    let row = Row::new(policy, METRIC, "value", error, "ratio").size_bytes(bytes);
    bench.report.row(row);
    let free = fragmented.free_huge_pages;
    bench.report.notes.push(format!(
        "fairness: {policy}: {free} huge pages were free in the beginning; both processes want {} each",
        bytes >> 21
    ));
    for ((which, huge), points) in
        [("first", of_first), ("second", of_second)].into_iter().zip(points)
    {
        let row = Row::new(policy, "fair_share_huge", "value", huge, "bytes").size_bytes(bytes);
        bench.report.row(row.variant(which));
        bench.report.series.push(Series {
            system: format!("{policy}, {which} process"),
            metric: "huge memory".to_owned(),
            unit: "bytes",
            points,
            marks: Vec::new(),
        });
    }
    for (target, which) in [(&mut first, "first"), (&mut second, "second")] {
        let like = Row::skipped(policy, METRIC, "").size_bytes(bytes).variant(which);
        target.push_changed(bench, &like)?;
    }
    Ok(())
}

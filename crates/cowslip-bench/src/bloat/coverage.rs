//! Until a process on base pages is on huge pages: `cowslip promote`, at once and as a daemon, and khugepaged.

use std::time::{Duration, Instant};

use cowslip_report::Row;

use super::daemon::Daemon;
use super::settings::{Settings, System};
use super::target::{KNOWN_BYTES, Target, until_huge};
use super::{Bench, Options, Result};
use crate::error::Error;
use crate::interrupt::Interrupt;

pub(super) const METRIC: &str = "coverage_time";
pub(super) const ONCE: &str = "once";
/// From here on a process counts as covered.
const COVERED: f64 = 0.9;
/// khugepaged gets this long for 1 GiB, and for less the part of it, within these bounds.
const SHORTEST: f64 = 11.0;
const LONGEST: f64 = 45.0;
const DAEMON_LONGEST: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Once,
    Daemon,
    Default,
    Eager,
}

impl Way {
    const ALL: [Self; 4] = [Self::Once, Self::Daemon, Self::Eager, Self::Default];

    fn name(self) -> &'static str {
        match self {
            Self::Once | Self::Daemon => "cowslip",
            Self::Default => "khugepaged",
            Self::Eager => "khugepaged-eager",
        }
    }

    fn variant(self) -> Option<&'static str> {
        match self {
            Self::Once => Some(ONCE),
            Self::Daemon => Some("daemon"),
            Self::Default | Self::Eager => None,
        }
    }
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    for way in Way::ALL {
        let name = [Some(way.name()), way.variant()].into_iter().flatten().collect::<Vec<_>>();
        bench.progress.phase(&format!("coverage: {}", name.join(" ")));
        let row = match cover(bench, way, bytes, system) {
            Ok(seconds) => Row::new(way.name(), METRIC, "value", seconds * 1e9, "ns"),
            Err(Error::Failed(why)) => Row::skipped(way.name(), METRIC, why),
            Err(error) => return Err(error),
        };
        bench.report.row(row.size_bytes(bytes).variant(way.variant()));
    }
    system.set(&Settings::NEVER)
}

/// How many seconds it took, or would take.
fn cover(bench: &mut Bench<'_>, way: Way, bytes: u64, system: &System) -> Result<f64> {
    let stop = bench.stop;
    let mut target = Target::filled(bytes, system, stop)?;
    let seconds = match way {
        Way::Once => once(&target, stop),
        Way::Daemon => daemon(&target, bytes, stop),
        Way::Default | Way::Eager => khugepaged(bench, way, &target, bytes, system),
    };
    let like = Row::skipped(way.name(), METRIC, "").size_bytes(bytes).variant(way.variant());
    target.push_changed(bench, &like)?;
    seconds
}

fn once(target: &Target, stop: &Interrupt) -> Result<f64> {
    let began = Instant::now();
    let coverage = COVERED.to_string();
    Daemon::start(&[target.pid()], &["--once", "--coverage", &coverage], "")?.wait(stop)?;
    Ok(began.elapsed().as_secs_f64())
}

fn daemon(target: &Target, bytes: u64, stop: &Interrupt) -> Result<f64> {
    let daemon = Daemon::start(&[target.pid()], &[], "")?;
    let (took, huge_bytes) = until_huge(target.pid(), covered_bytes(bytes), DAEMON_LONGEST, stop)?;
    daemon.end(stop)?;
    if huge_bytes < covered_bytes(bytes) {
        let percent = huge_bytes as f64 / bytes as f64 * 100.0;
        return Err(Error::Failed(format!("{percent:.0} % were huge after {DAEMON_LONGEST:?}")));
    }
    Ok(took.as_secs_f64())
}

/// What is huge of a process that wrote so many bytes on base pages when it counts as covered.
fn covered_bytes(bytes: u64) -> u64 {
    KNOWN_BYTES + (bytes as f64 * COVERED) as u64
}

/// Measured for a while, and beyond that reckoned from the rate so far.
fn khugepaged(
    bench: &mut Bench<'_>,
    way: Way,
    target: &Target,
    bytes: u64,
    system: &System,
) -> Result<f64> {
    let seconds = (bytes as f64 / super::GIB as f64 * LONGEST).clamp(SHORTEST, LONGEST);
    let longest = Duration::from_secs_f64(seconds);
    system.set(if way == Way::Eager { &Settings::EAGER } else { &Settings::ALWAYS })?;
    let (took, huge_bytes) = until_huge(target.pid(), covered_bytes(bytes), longest, bench.stop)?;
    if huge_bytes >= covered_bytes(bytes) {
        return Ok(took.as_secs_f64());
    }
    let made = huge_bytes.saturating_sub(KNOWN_BYTES);
    if made == 0 {
        return Err(Error::Failed(format!("khugepaged made nothing huge in {took:.0?}")));
    }
    let reckoned = took.as_secs_f64() * bytes as f64 / made as f64;
    bench.report.notes.push(format!(
        "coverage: {} made {} MiB huge in {:.0} s; for all of it that rate was reckoned on",
        way.name(),
        made >> 20,
        took.as_secs_f64()
    ));
    Ok(reckoned)
}

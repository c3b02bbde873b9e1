//! Time until a process on base pages is on huge pages: `cowslip promote`, at once and as a daemon, `MADV_COLLAPSE` by
//! hand, and khugepaged, with its defaults and as fast as it can.

use std::time::{Duration, Instant};

use crate::report::Row;
use cowslip::units::ByteCount;

use super::collapse::collapse;
use super::daemon::Daemon;
use super::settings::{Settings, System};
use super::target::{KNOWN_BYTES, Target, huge_bytes, until_huge};
use super::{Bench, Options, Result};
use crate::error::Error;
use crate::host::warm;
use crate::interrupt::Interrupt;

pub(super) const METRIC: &str = "coverage_time";
pub(super) const ONCE: &str = "once";
pub(super) const COLLAPSE: &str = "madv-collapse";
pub(super) const KHUGEPAGED: &str = "khugepaged";
pub(super) const EAGER: &str = "khugepaged-eager";
/// A process counts as covered from this share on.
const COVERED: f64 = 0.9;
/// khugepaged looks once in 10 s by default. A full run gives it longer, in proportion to the memory.
const SHORTEST: f64 = 11.0;
const LONGEST: f64 = 45.0;
const DAEMON_LONGEST: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Promoter {
    Once,
    Daemon,
    Collapse,
    Eager,
    Default,
}

impl Promoter {
    const ALL: [Self; 5] = [Self::Once, Self::Daemon, Self::Collapse, Self::Eager, Self::Default];

    fn name(self) -> &'static str {
        match self {
            Self::Once | Self::Daemon => "cowslip",
            Self::Collapse => COLLAPSE,
            Self::Default => KHUGEPAGED,
            Self::Eager => EAGER,
        }
    }

    fn variant(self) -> Option<&'static str> {
        match self {
            Self::Once => Some(ONCE),
            Self::Daemon => Some("daemon"),
            Self::Collapse | Self::Default | Self::Eager => None,
        }
    }
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    for promoter in Promoter::ALL {
        let words = [Some(promoter.name()), promoter.variant()].into_iter().flatten();
        bench.progress.phase(&format!("coverage: {}", words.collect::<Vec<_>>().join(" ")));
        let row = match cover(bench, promoter, bytes, system) {
            Ok(seconds) => Row::new(promoter.name(), METRIC, "value", seconds * 1e9, "ns"),
            Err(Error::Failed(why)) => Row::skipped(promoter.name(), METRIC, why),
            Err(error) => return Err(error),
        };
        bench.report.row(row.size_bytes(bytes).variant(promoter.variant()));
    }
    system.set(&Settings::NEVER)
}

/// The seconds that it took, or would take.
fn cover(bench: &mut Bench<'_>, promoter: Promoter, bytes: u64, system: &System) -> Result<f64> {
    let stop = bench.stop;
    warm(ByteCount(2 * bytes), stop)?;
    let mut target = Target::filled(bytes, system, stop)?;
    let seconds = match promoter {
        Promoter::Once => once(&target, stop),
        Promoter::Daemon => daemon(&target, bytes, stop),
        Promoter::Collapse => by_hand(&target, bytes, system, stop),
        Promoter::Default | Promoter::Eager => khugepaged(bench, promoter, &target, bytes, system),
    };
    let like = Row::skipped(promoter.name(), METRIC, "").size_bytes(bytes);
    target.push_changed(bench, &like.variant(promoter.variant()))?;
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
    is_covered(huge_bytes, bytes, took)
}

/// Runs under the settings that `cowslip promote` is measured under.
fn by_hand(target: &Target, bytes: u64, system: &System, stop: &Interrupt) -> Result<f64> {
    system.set(&Settings::ON_REQUEST)?;
    let began = Instant::now();
    collapse(target.pid(), stop)?;
    is_covered(huge_bytes(target.pid())?, bytes, began.elapsed())
}

fn is_covered(huge_bytes: u64, bytes: u64, took: Duration) -> Result<f64> {
    if huge_bytes < covered_bytes(bytes) {
        let percent = huge_bytes as f64 / bytes as f64 * 100.0;
        return Err(Error::Failed(format!("{percent:.0} % were huge after {took:.1?}")));
    }
    Ok(took.as_secs_f64())
}

/// The huge memory at which a process that wrote this many bytes on base pages counts as covered.
fn covered_bytes(bytes: u64) -> u64 {
    KNOWN_BYTES + (bytes as f64 * COVERED) as u64
}

/// Measures for a while, and extrapolates the rest from the rate so far.
fn khugepaged(
    bench: &mut Bench<'_>,
    promoter: Promoter,
    target: &Target,
    bytes: u64,
    system: &System,
) -> Result<f64> {
    let longest = if bench.clock.is_full() { LONGEST } else { SHORTEST };
    let seconds = (bytes as f64 / super::GIB as f64 * longest).clamp(SHORTEST, longest);
    let longest = Duration::from_secs_f64(seconds);
    let is_eager = promoter == Promoter::Eager;
    system.set(if is_eager { &Settings::EAGER } else { &Settings::ALWAYS })?;
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
        promoter.name(),
        made >> 20,
        took.as_secs_f64()
    ));
    Ok(reckoned)
}

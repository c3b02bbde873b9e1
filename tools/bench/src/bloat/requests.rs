//! Requests to a Redis at a fixed rate: quiet, while `cowslip promote` gives it huge pages, and while an eager
//! khugepaged does.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::report::{Latencies, Row, Series};

use super::daemon::Daemon;
use super::settings::{Settings, System};
use super::store::Store;
use super::target::{mapped, part_of_resident};
use super::{BYTES_CHANGED, Bench, Options, Result};
use crate::demo::redis::memory::anonymous_huge_bytes;
use crate::error::during;
use crate::interrupt::Interrupt;

pub(super) const METRIC: &str = "request";
pub(super) const QUIET: &str = "quiet";
pub(super) const PROMOTING: &str = "during promotion";

const VALUE_BYTES: usize = 1024;
/// Memory of a value with its key.
const FOOTPRINT: u64 = 1400;
const REQUESTS_A_SECOND: u32 = 2000;
const QUIET_TIME: Duration = Duration::from_secs(20);
/// For a short run.
const SHORT_QUIET_TIME: Duration = Duration::from_secs(7);
const COVERED: f64 = 0.85;
const READ_MEMORY: &str = "read the memory of all processes";
/// A longer promotion is measured up to this time.
const LONGEST: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(1);
/// Each point of the chart is the longest request in this time.
const BUCKET: Duration = Duration::from_millis(100);

/// A server, and the policy that gives it huge pages while it is asked.
struct Entry {
    policy: &'static str,
    store: Store,
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64 / 2;
    let quiet_time = if bench.clock.is_full() { QUIET_TIME } else { SHORT_QUIET_TIME };
    let mut entries = Vec::new();
    for policy in ["cowslip", "khugepaged-eager"] {
        bench.progress.phase(&format!("requests: filling a server for {policy}"));
        // khugepaged scans only processes that were once eligible for huge pages.
        system.set(&Settings::ASLEEP)?;
        let mut store = Store::start(VALUE_BYTES, false, bench.stop)?;
        system.set(&Settings::NEVER)?;
        store.fill((bytes / FOOTPRINT) as usize, bench.stop)?;
        entries.push(Entry { policy, store });
    }
    for entry in &mut entries {
        bench.progress.phase(&format!("requests: {}, quiet", entry.policy));
        let (quiet, _) = ask(&mut entry.store, bench.stop, |passed| passed >= quiet_time)?;
        quiet.push(bench.report, entry.policy, METRIC, Some(bytes), Some(QUIET));
    }
    for entry in &mut entries {
        bench.progress.phase(&format!("requests: {}, promoting", entry.policy));
        let pid = entry.store.pid();
        let enough_bytes =
            anonymous_huge_bytes().map_err(during(READ_MEMORY))? + part_of_resident(pid, COVERED)?;
        let daemon = match entry.policy {
            "cowslip" => {
                system.set(&Settings::ON_REQUEST)?;
                Some(Daemon::start(&[pid], &[], "")?)
            }
            _ => {
                system.set(&Settings::EAGER)?;
                None
            }
        };
        let (is_covered, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        // Looks from a thread of its own: on the asking thread the time of a look would count as the server's.
        let asked = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) && !is_covered.load(Relaxed) {
                    let huge_bytes = anonymous_huge_bytes().unwrap_or(u64::MAX);
                    is_covered.store(huge_bytes >= enough_bytes, Relaxed);
                    thread::sleep(LOOK);
                }
            });
            let asked = ask(&mut entry.store, bench.stop, |passed| {
                passed >= LONGEST || (passed >= quiet_time && is_covered.load(Relaxed))
            });
            is_over.store(true, Relaxed);
            asked
        });
        system.set(&Settings::NEVER)?;
        let (during_it, peaks) = asked?;
        if let Some(daemon) = daemon {
            let deeds = daemon.end(bench.stop)?;
            let stall = deeds.longest_stall_ns as f64;
            let row = Row::new(entry.policy, "request_longest_promotion", "value", stall, "ns");
            bench.report.row(row.size_bytes(bytes).n(deeds.promotions));
        }
        during_it.push(bench.report, entry.policy, METRIC, Some(bytes), Some(PROMOTING));
        let huge = mapped(pid)?.coverage();
        let row = Row::new(entry.policy, "request_huge_coverage", "value", huge, "ratio");
        bench.report.row(row.size_bytes(bytes));
        let changed = entry.store.changed_bytes(bench.stop)?;
        let row = Row::new(entry.policy, BYTES_CHANGED, "value", changed as f64, "bytes");
        bench.report.row(row.size_bytes(bytes).variant("requests"));
        bench.report.series.push(Series {
            system: entry.policy.to_owned(),
            metric: "longest request of 100 ms, during promotion".to_owned(),
            unit: "ns",
            points: peaks,
            marks: Vec::new(),
        });
    }
    bench.report.notes.push(format!(
        "requests: {REQUESTS_A_SECOND} GETs a second, each timed from when it was due, whether the one before \
         had been answered or not"
    ));
    Ok(())
}

/// Sends a request whenever one is due, until `is_over`. Returns the time that each took since it was due, and the
/// longest over time.
fn ask(
    store: &mut Store,
    stop: &Interrupt,
    mut is_over: impl FnMut(Duration) -> bool,
) -> Result<(Latencies, Vec<(f64, f64)>)> {
    let mut connection = store.connect()?;
    let mut scratch = vec![0; VALUE_BYTES];
    let mut latencies = Latencies::new();
    let mut peaks: Vec<(f64, f64)> = Vec::new();
    let pace = Duration::from_secs(1) / REQUESTS_A_SECOND;
    let began = Instant::now();
    let mut due = Duration::ZERO;
    while !is_over(due) {
        stop.check()?;
        thread::sleep(due.saturating_sub(began.elapsed()));
        let key = store.ask(&mut connection)?;
        store.check(Some(&mut connection), key, &mut scratch)?;
        let took = began.elapsed().saturating_sub(due);
        latencies.record(took);
        let bucket = (due.as_nanos() / BUCKET.as_nanos()) as usize;
        if bucket >= peaks.len() {
            peaks.push((due.as_secs_f64(), 0.0));
        }
        if let Some((_, peak)) = peaks.last_mut() {
            *peak = peak.max(took.as_nanos() as f64);
        }
        due += pace;
    }
    Ok((latencies, peaks))
}

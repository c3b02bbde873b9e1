//! Kernel counters that are known to cost time, the part of the time that they cost, and how much.

use cowslip_compare::TimePart::{self, Asleep, DiskWait, ProcessorWait, System, User};
use cowslip_compare::inputs::WALL;
use cowslip_compare::{Comparison, Measure, PartOfTime, Row, TimeSplit, Verdict};

use super::format::is_relevant;

/// The time that one counted event takes, in seconds.
#[derive(Clone, Copy)]
enum Cost {
    /// A usual time.
    About(f64),
    /// A usual time, which has a reason of its own if another counter explains the time.
    Else(f64),
    /// Any time: such events are how this part of the time comes about.
    Any,
}
use Cost::{About, Any, Else};

/// Counters that one sentence names.
pub(super) const MOST: usize = 2;

const MICROSECOND: f64 = 1e-6;

/// The order decides between equals: the command's own events come before the machine's, and causes before their
/// consequences.
const KNOWN: [(TimePart, &str, Cost); 47] = [
    (System, "rusage.minor_faults", About(0.5 * MICROSECOND)),
    (System, "process.read_calls", About(0.3 * MICROSECOND)),
    (System, "process.write_calls", About(0.3 * MICROSECOND)),
    (System, "vmstat.pswpin", About(20.0 * MICROSECOND)),
    (System, "vmstat.pswpout", About(10.0 * MICROSECOND)),
    (System, "vmstat.compact_stall", About(500.0 * MICROSECOND)),
    (System, "vmstat.allocstall_normal", About(100.0 * MICROSECOND)),
    (System, "vmstat.allocstall_movable", About(100.0 * MICROSECOND)),
    (System, "vmstat.pgscan_direct", About(0.5 * MICROSECOND)),
    (System, "vmstat.thp_fault_alloc", About(100.0 * MICROSECOND)),
    (System, "vmstat.thp_split_page", About(20.0 * MICROSECOND)),
    (System, "vmstat.pgmigrate_success", About(2.0 * MICROSECOND)),
    (System, "vmstat.numa_pages_migrated", About(5.0 * MICROSECOND)),
    (System, "vmstat.numa_hint_faults", About(1.0 * MICROSECOND)),
    // A wait and its wake-up: on a virtual machine 10 us for a contended mutex, 25 us for a condition variable.
    (System, "rusage.voluntary_switches", About(10.0 * MICROSECOND)),
    (System, "rusage.involuntary_switches", About(2.0 * MICROSECOND)),
    (System, "interrupts.TLB", About(3.0 * MICROSECOND)),
    (System, "scheduler.forks", About(100.0 * MICROSECOND)),
    (User, "rusage.minor_faults", About(0.25 * MICROSECOND)),
    (User, "vmstat.pswpin", About(1.0 * MICROSECOND)),
    // A setting, which is no consequence of anything else.
    (ProcessorWait, "process.forbidden_processors", About(f64::INFINITY)),
    (ProcessorWait, "process.throttled_seconds", About(1.0)),
    // They run on the other processors, too.
    (ProcessorWait, "others.cpu_share", About(0.25)),
    (ProcessorWait, "process.overlap_seconds", Else(0.25)),
    (ProcessorWait, "rusage.involuntary_switches", Any),
    (ProcessorWait, "rusage.voluntary_switches", Any),
    (ProcessorWait, "scheduler.runnable", Any),
    (DiskWait, "disk.*.flushes", About(500.0 * MICROSECOND)),
    (DiskWait, "rusage.major_faults", About(100.0 * MICROSECOND)),
    (DiskWait, "vmstat.pswpin", About(100.0 * MICROSECOND)),
    (DiskWait, "process.disk_read_bytes", About(2e-9)),
    (DiskWait, "vmstat.workingset_refault_file", About(50.0 * MICROSECOND)),
    (DiskWait, "disk.*.reads", About(100.0 * MICROSECOND)),
    (DiskWait, "disk.*.writes", About(50.0 * MICROSECOND)),
    (DiskWait, "process.disk_written_bytes", About(2e-9)),
    (DiskWait, "rusage.voluntary_switches", Any),
    (Asleep, "process.locked_seconds", About(1.0)),
    (Asleep, "process.lock_wait_seconds", About(1.0)),
    (Asleep, "disk.*.flushes", About(500.0 * MICROSECOND)),
    (Asleep, "rusage.major_faults", About(100.0 * MICROSECOND)),
    (Asleep, "vmstat.pswpin", About(100.0 * MICROSECOND)),
    (Asleep, "process.disk_read_bytes", About(2e-9)),
    (Asleep, "disk.*.reads", About(100.0 * MICROSECOND)),
    (Asleep, "disk.*.writes", About(50.0 * MICROSECOND)),
    (Asleep, "process.forbidden_processors", Any),
    (Asleep, "rusage.voluntary_switches", Any),
    (Asleep, "rusage.involuntary_switches", Any),
];

/// A counter and the time that it explains.
pub(super) struct Cause<'a> {
    pub(super) row: &'a Row,
    /// Seconds of a run, with the sign of the change.
    seconds: f64,
}

/// The counters that explain a tenth or more of the change in these parts of the time, the best first: by their usual
/// costs, or, if those explain nothing, by the way such time comes about.
pub(super) fn causes<'a>(
    comparison: &'a Comparison,
    split: &TimeSplit,
    parts: &[TimePart],
    effect: f64,
) -> Vec<Cause<'a>> {
    let mut found: Vec<Cause<'a>> = Vec::new();
    let mut how: Vec<Cause<'a>> = Vec::new();
    for (part, metric, cost) in KNOWN {
        let Some(of) = parts.iter().find(|time_part| holds(**time_part, part)) else { continue };
        let Some(whole) = split.parts.iter().find(|entry| entry.part == *of) else { continue };
        let added = size(whole);
        for row in differing(comparison, metric, effect) {
            let count = counted(row, split);
            if count.signum() != added.signum() {
                continue;
            }
            match cost {
                About(each) if (count * each / added) >= 0.1 => {
                    let seconds = added.signum() * (count * each).abs().min(added.abs());
                    found.push(Cause { row, seconds });
                }
                Else(each) if (count * each / added) >= 0.1 => {
                    how.push(Cause { row, seconds: added });
                }
                About(_) | Else(_) => {}
                Any => how.push(Cause { row, seconds: added }),
            }
        }
    }
    let mut all = if found.is_empty() { how } else { found };
    // The sort is stable: equals stay in the table's order.
    all.sort_by(|a, b| b.seconds.abs().total_cmp(&a.seconds.abs()));
    let mut seen = Vec::new();
    all.retain(|cause| {
        let is_new = !seen.contains(&&cause.row.metric);
        seen.push(&cause.row.metric);
        is_new
    });
    let most = all.first().map_or(0.0, |cause| cause.seconds.abs());
    all.retain(|cause| cause.seconds.abs() >= most / 4.0);
    all
}

/// The seconds that bad runs have more of a part; of waiting, with those for a processor after it.
pub(super) fn size(part: &PartOfTime) -> f64 {
    match part.part {
        DiskWait | Asleep => part.carried,
        _ => part.added(),
    }
}

/// Counters that differ and usually cost more than a hundredth of the good runs' time, the most expensive first.
pub(super) fn costly<'a>(
    comparison: &'a Comparison,
    split: &TimeSplit,
    effect: f64,
) -> Vec<&'a Row> {
    let mut all: Vec<(f64, &Row)> = Vec::new();
    for (_, metric, cost) in KNOWN {
        let About(each) = cost else { continue };
        let rows = differing(comparison, metric, effect);
        for row in rows.filter(|row| row.verdict == Verdict::Differs) {
            let share = (counted(row, split) * each / split.means.0).abs();
            match all.iter_mut().find(|(_, known)| known.metric == row.metric) {
                Some((known, _)) => *known = known.max(share),
                None if share >= 0.01 => all.push((share, row)),
                None => {}
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.into_iter().map(|(_, row)| row).collect()
}

/// Processor time, or time off a processor, includes its parts if it is not divided into them.
fn holds(whole: TimePart, part: TimePart) -> bool {
    match whole {
        TimePart::Running => matches!(part, User | System),
        TimePart::NotRunning => matches!(part, ProcessorWait | DiskWait | Asleep),
        _ => whole == part,
    }
}

fn differing<'a>(
    comparison: &'a Comparison,
    metric: &'static str,
    effect: f64,
) -> impl Iterator<Item = &'a Row> {
    let is_it = move |row: &&Row| {
        let name = row.metric.strip_suffix("/s").unwrap_or(&row.metric);
        match metric.split_once('*') {
            Some((begin, end)) => name.starts_with(begin) && name.ends_with(end),
            None => name == metric,
        }
    };
    let differs = move |row: &&Row| row.verdict != Verdict::Unproven && is_relevant(row, effect);
    comparison.rows.iter().filter(is_it).filter(differs)
}

/// The increase of the count in a bad run; of times, which grow with the length of a run, the increase beyond that.
fn counted(row: &Row, split: &TimeSplit) -> f64 {
    let ((good, bad), (shorter, longer)) = (row.means, split.means);
    let name = row.metric.strip_suffix("/s").unwrap_or(&row.metric);
    let is_time = ["_seconds", "_share"].iter().any(|unit| name.ends_with(unit));
    match row.measure {
        Measure::Count if is_time => bad - good * longer / shorter,
        Measure::Count => bad - good,
        _ if is_time => (bad - good) * longer,
        Measure::Rate => bad * longer - good * shorter,
        Measure::Value => bad - good,
    }
}

/// Prefixes of the machine's metrics.
const OF_MACHINE: [&str; 9] = [
    "vmstat.",
    "meminfo.",
    "cpu.",
    "loadavg.",
    "pressure.",
    "interrupts.",
    "scheduler.",
    "network.",
    "disk.",
];

/// Times by looks at the command's threads, which the ledger shows.
const LOOKS: [&str; 6] = [
    "process.blocked_seconds",
    "process.asleep_seconds",
    "process.locked_seconds",
    "process.lock_wait_seconds",
    "process.overlap_seconds",
    "process.blocked_beside_seconds",
];

/// Returns true for a known consequence of the program's work that costs nothing by itself: `numa_local`,
/// `pgalloc_normal`, `idle`. The first line omits it.
pub(super) fn is_consequence(row: &Row) -> bool {
    let name = row.metric.strip_suffix("/s").unwrap_or(&row.metric);
    let is_known = |(_, metric, _): &(TimePart, &str, Cost)| match metric.split_once('*') {
        Some((begin, end)) => name.starts_with(begin) && name.ends_with(end),
        None => name == *metric,
    };
    name == WALL
        || LOOKS.contains(&name)
        || OF_MACHINE.iter().any(|kind| name.starts_with(kind)) && !KNOWN.iter().any(is_known)
}

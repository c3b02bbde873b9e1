//! Kernel counters that are known to cost time, the part of the time that they cost, and how much.

use crate::TimePart::{self, Asleep, DiskWait, ProcessorWait, System, User};
use crate::inputs::WALL;
use crate::{Comparison, Measure, Row, TimeSplit, Verdict};

/// The time that one counted event takes, in seconds.
#[derive(Clone, Copy)]
pub(super) enum Cost {
    /// A usual time.
    About(f64),
    /// A usual time, which has a reason of its own if another counter explains the time.
    Else(f64),
    /// Any time: such events are how this part of the time comes about.
    Any,
}
use Cost::{About, Any, Else};

const MICROSECOND: f64 = 1e-6;

/// The order decides between equals: the command's own events come before the machine's, and causes before their
/// consequences.
pub(super) const KNOWN: [(TimePart, &str, Cost); 47] = [
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

/// The counters that this name stands for, as far as they differ by `effect` or more.
pub(super) fn differing<'a>(
    comparison: &'a Comparison,
    name: &'static str,
    effect: f64,
) -> impl Iterator<Item = &'a Row> {
    let differs = move |row: &&Row| row.verdict != Verdict::Unproven && row.matters(effect);
    comparison.rows.iter().filter(move |row| is_called(row, name)).filter(differs)
}

fn is_called(row: &Row, name: &str) -> bool {
    match name.split_once('*') {
        Some((begin, end)) => row.name().starts_with(begin) && row.name().ends_with(end),
        None => row.name() == name,
    }
}

/// The increase of the count in a bad run; of times, which grow with the length of a run, the increase beyond that.
pub(super) fn counted(row: &Row, split: &TimeSplit) -> f64 {
    let ((good, bad), (shorter, longer)) = (row.means, split.means);
    let is_seconds = row.name().ends_with("_seconds");
    match row.measure {
        Measure::Rate if is_seconds => (bad - good) * longer,
        Measure::Rate => bad * longer - good * shorter,
        Measure::Count | Measure::Value if is_seconds => bad - good * longer / shorter,
        Measure::Value if row.name().ends_with("_share") => (bad - good) * longer,
        Measure::Count | Measure::Value => bad - good,
    }
}

/// Prefixes of the machine's metrics.
pub(crate) const OF_MACHINE: [&str; 9] = [
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
/// `pgalloc_normal`, `idle`.
pub fn is_consequence(row: &Row) -> bool {
    row.name() == WALL
        || LOOKS.contains(&row.name())
        || OF_MACHINE.iter().any(|kind| row.name().starts_with(kind))
            && !KNOWN.iter().any(|(_, name, _)| is_called(row, name))
}

//! Kernel counters that are known to cost time, the part of the time that they cost, and how much.

use super::Prices;
use crate::TimePart::{self, Asleep, DiskWait, ProcessorWait, System, User};
use crate::inputs::WALL;
use crate::{Comparison, Measure, Row, TimeSplit, Verdict};

/// The time that one counted event takes.
#[derive(Clone, Copy)]
pub(super) enum Cost {
    /// A price.
    About(Each),
    /// Seconds, which have a reason of their own if another counter explains the time.
    Else(f64),
    /// Any time: such events are how this part of the time comes about.
    Any,
}
use Cost::{About, Any, Else};

/// The price of an event: seconds, or a multiple of one that is measured on the machine.
#[derive(Clone, Copy)]
pub(super) enum Each {
    Seconds(f64),
    Faults(f64),
    HugeFaults(f64),
    Switches(f64),
    Calls(f64),
}
use Each::{Calls, Faults, HugeFaults, Seconds, Switches};

impl Cost {
    /// The seconds of one event; 0 if it may take any time.
    pub(super) fn seconds(self, prices: &Prices) -> f64 {
        match self {
            About(Seconds(seconds)) | Else(seconds) => seconds,
            About(Faults(many)) => many * prices.fault,
            About(HugeFaults(many)) => many * prices.huge_fault,
            About(Switches(many)) => many * prices.switch,
            About(Calls(many)) => many * prices.call,
            Any => 0.0,
        }
    }
}

const MICROSECOND: f64 = 1e-6;

/// The order decides between equals: the command's own events come before the machine's, and causes before their
/// consequences.
pub(super) const KNOWN: [(TimePart, &str, Cost); 47] = [
    (System, "rusage.minor_faults", About(Faults(1.0))),
    (System, "process.read_calls", About(Calls(1.0))),
    (System, "process.write_calls", About(Calls(1.0))),
    (System, "vmstat.pswpin", About(Seconds(20.0 * MICROSECOND))),
    (System, "vmstat.pswpout", About(Seconds(10.0 * MICROSECOND))),
    (System, "vmstat.compact_stall", About(Seconds(500.0 * MICROSECOND))),
    (System, "vmstat.allocstall_normal", About(Seconds(100.0 * MICROSECOND))),
    (System, "vmstat.allocstall_movable", About(Seconds(100.0 * MICROSECOND))),
    (System, "vmstat.pgscan_direct", About(Seconds(0.5 * MICROSECOND))),
    (System, "vmstat.thp_fault_alloc", About(HugeFaults(1.0))),
    (System, "vmstat.thp_split_page", About(Seconds(20.0 * MICROSECOND))),
    (System, "vmstat.pgmigrate_success", About(Seconds(2.0 * MICROSECOND))),
    (System, "vmstat.numa_pages_migrated", About(Seconds(5.0 * MICROSECOND))),
    (System, "vmstat.numa_hint_faults", About(Seconds(1.0 * MICROSECOND))),
    (System, "rusage.voluntary_switches", About(Switches(1.0))),
    // Without a wake-up.
    (System, "rusage.involuntary_switches", About(Switches(0.2))),
    (System, "interrupts.TLB", About(Seconds(3.0 * MICROSECOND))),
    (System, "scheduler.forks", About(Seconds(100.0 * MICROSECOND))),
    // The program finds its caches cold.
    (User, "rusage.minor_faults", About(Faults(0.5))),
    (User, "vmstat.pswpin", About(Seconds(1.0 * MICROSECOND))),
    // A setting, which is no consequence of anything else.
    (ProcessorWait, "process.forbidden_processors", About(Seconds(f64::INFINITY))),
    (ProcessorWait, "process.throttled_seconds", About(Seconds(1.0))),
    // They run on the other processors, too.
    (ProcessorWait, "others.cpu_share", About(Seconds(0.25))),
    (ProcessorWait, "process.overlap_seconds", Else(0.25)),
    (ProcessorWait, "rusage.involuntary_switches", Any),
    (ProcessorWait, "rusage.voluntary_switches", Any),
    (ProcessorWait, "scheduler.runnable", Any),
    (DiskWait, "disk.*.flushes", About(Seconds(500.0 * MICROSECOND))),
    (DiskWait, "rusage.major_faults", About(Seconds(100.0 * MICROSECOND))),
    (DiskWait, "vmstat.pswpin", About(Seconds(100.0 * MICROSECOND))),
    (DiskWait, "process.disk_read_bytes", About(Seconds(2e-9))),
    (DiskWait, "vmstat.workingset_refault_file", About(Seconds(50.0 * MICROSECOND))),
    (DiskWait, "disk.*.reads", About(Seconds(100.0 * MICROSECOND))),
    (DiskWait, "disk.*.writes", About(Seconds(50.0 * MICROSECOND))),
    (DiskWait, "process.disk_written_bytes", About(Seconds(2e-9))),
    (DiskWait, "rusage.voluntary_switches", Any),
    (Asleep, "process.locked_seconds", About(Seconds(1.0))),
    (Asleep, "process.lock_wait_seconds", About(Seconds(1.0))),
    (Asleep, "disk.*.flushes", About(Seconds(500.0 * MICROSECOND))),
    (Asleep, "rusage.major_faults", About(Seconds(100.0 * MICROSECOND))),
    (Asleep, "vmstat.pswpin", About(Seconds(100.0 * MICROSECOND))),
    (Asleep, "process.disk_read_bytes", About(Seconds(2e-9))),
    (Asleep, "disk.*.reads", About(Seconds(100.0 * MICROSECOND))),
    (Asleep, "disk.*.writes", About(Seconds(50.0 * MICROSECOND))),
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

/// Returns true for a counter of time, in seconds or as a share.
pub(super) fn is_time(row: &Row) -> bool {
    ["_seconds", "_share"].iter().any(|unit| row.name().ends_with(unit))
}

/// The increase of the count in a bad run; of times, which grow with the length of a run, the increase beyond that.
pub(super) fn counted(row: &Row, split: &TimeSplit) -> f64 {
    let ((good, bad), (shorter, longer)) = (row.means, split.means);
    match row.measure {
        // Seconds of a run as a whole are a count.
        Measure::Count | Measure::Value if row.name().ends_with("_seconds") => {
            bad - good * longer / shorter
        }
        Measure::Value | Measure::Rate if is_time(row) => (bad - good) * longer,
        Measure::Rate => bad * longer - good * shorter,
        Measure::Count | Measure::Value => bad - good,
    }
}

/// Prefixes of the machine's metrics; `intr.` is that of `sar`'s interrupts.
pub(crate) const OF_MACHINE: [&str; 10] = [
    "vmstat.",
    "meminfo.",
    "cpu.",
    "loadavg.",
    "pressure.",
    "interrupts.",
    "intr.",
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

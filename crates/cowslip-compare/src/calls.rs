//! System calls of good and bad runs: those that grew, in number or in time.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::TimePart;
use crate::stats::{Estimate, difference};

/// Calls with less of the greatest difference of the time are not listed, and no more than this number.
const LEAST: f64 = 0.05;
const MOST: usize = 6;

/// Calls that wait for a disk.
const OF_DISK: [&str; 15] = [
    "fdatasync",
    "fsync",
    "msync",
    "pread64",
    "preadv",
    "pwrite64",
    "pwritev",
    "read",
    "readahead",
    "renameat2",
    "sendfile",
    "sync",
    "sync_file_range",
    "syncfs",
    "write",
];
/// Calls that wait for a time, or for a peer.
const OF_SLEEP: [&str; 13] = [
    "accept",
    "accept4",
    "clock_nanosleep",
    "connect",
    "epoll_pwait",
    "epoll_wait",
    "nanosleep",
    "poll",
    "pselect6",
    "recvfrom",
    "recvmsg",
    "select",
    "sendto",
];

/// The system calls of a run, by name.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CalledRun {
    /// The calls of each name.
    pub calls: BTreeMap<Arc<str>, Called>,
}

/// All calls of a name in a run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Called {
    /// Their number.
    pub count: f64,
    /// Seconds from their beginnings to their ends.
    pub elapsed: f64,
    /// Seconds of these on a processor.
    pub processor: f64,
}

/// A value of a run, on both sides.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Difference {
    /// The means of good and bad runs.
    pub means: (f64, f64),
    /// The increase in bad runs, with Welch's interval unless both sides are constant.
    pub added: Estimate,
}

/// The calls of a name on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct CallRow {
    /// The call's name.
    pub name: Arc<str>,
    /// The calls of a run.
    pub count: Difference,
    /// Seconds of a run from the calls' beginnings to their ends.
    pub elapsed: Difference,
    /// Seconds of a run in these calls on a processor.
    pub processor: Difference,
}

/// The difference of system calls.
///
/// ```
/// use cowslip_compare::calls::{CallDifference, Called, CalledRun};
///
/// let run = |count: f64| {
///     let stat = Called { count, elapsed: count * 1e-6, processor: count * 1e-6 };
///     CalledRun { calls: [("stat".into(), stat)].into() }
/// };
/// let difference = CallDifference::new(&[run(2e3), run(2e3)], &[run(4e5), run(4e5)], 0.05).unwrap();
/// assert_eq!(&*difference.calls[0].name, "stat");
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct CallDifference {
    /// The number of runs of each side.
    pub runs: (usize, usize),
    /// The calls that took more or less time, the greatest difference first.
    pub calls: Vec<CallRow>,
}

impl CallRow {
    /// The seconds that bad runs have more of it in this part of the time. Waits for the program's own threads and children
    /// are no reason of their own.
    pub(crate) fn added_to(&self, part: TimePart) -> f64 {
        let waits = || self.elapsed.added.value - self.processor.added.value;
        let is_in = |calls: &[&str]| calls.contains(&&*self.name);
        match part {
            TimePart::System | TimePart::Running => self.processor.added.value,
            TimePart::DiskWait if is_in(&OF_DISK) => waits(),
            TimePart::Asleep if is_in(&OF_SLEEP) => waits(),
            TimePart::NotRunning if is_in(&OF_DISK) || is_in(&OF_SLEEP) => waits(),
            _ => 0.0,
        }
    }

    /// The seconds that bad runs have more of it.
    pub fn added(&self) -> f64 {
        self.added_to(TimePart::System) + self.added_to(TimePart::NotRunning)
    }
}

impl CallDifference {
    /// Compares runs; `None` without runs on a side.
    pub fn new(good: &[CalledRun], bad: &[CalledRun], alpha: f64) -> Option<Self> {
        if good.is_empty() || bad.is_empty() {
            return None;
        }
        let change = |name: &Arc<str>, value: fn(&Called) -> f64| {
            let values = [good, bad].map(|runs| -> Vec<f64> {
                runs.iter().map(|run| run.calls.get(name).map_or(0.0, value)).collect()
            });
            let mean = |side: &[f64]| side.iter().sum::<f64>() / side.len() as f64;
            let means = (mean(&values[0]), mean(&values[1]));
            Difference { means, added: difference(&values[0], &values[1], alpha) }
        };
        let mut names: Vec<&Arc<str>> =
            good.iter().chain(bad).flat_map(|run| run.calls.keys()).collect();
        names.sort();
        names.dedup();
        let row = |name: &Arc<str>| CallRow {
            name: name.clone(),
            count: change(name, |called| called.count),
            elapsed: change(name, |called| called.elapsed),
            processor: change(name, |called| called.processor),
        };
        let mut calls: Vec<CallRow> = names.into_iter().map(row).collect();
        calls.sort_by(|one, other| other.added().abs().total_cmp(&one.added().abs()));
        // Single samples of a call come and go.
        let greatest = calls.first().map_or(0.0, |row| row.added().abs());
        calls.retain(|row| {
            let all = [&row.count, &row.elapsed, &row.processor];
            row.added().abs() > LEAST * greatest && all.iter().any(|of| of.added.is_certain())
        });
        calls.truncate(MOST);
        Some(Self { runs: (good.len(), bad.len()), calls })
    }
}

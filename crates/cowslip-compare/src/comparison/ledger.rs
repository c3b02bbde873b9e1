//! The difference of the wall time as a sum: entries of a ledger, each with its interval.

use serde::Serialize;

use super::paired::{Both, count, less, means, zip};
use crate::Prices;
use crate::inputs::Run;
use crate::stats::{Estimate, difference, two_sided_quantile};

/// A part of the time of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimePart {
    /// On a processor, in the program.
    User,
    /// On a processor, in the kernel.
    System,
    /// On a processor: too little for the ticks that separate the program from the kernel.
    Running,
    /// Ready to run, while others did.
    ProcessorWait,
    /// Waiting for a disk.
    DiskWait,
    /// All threads waited, one of them for a lock and the others for locks or children. In the ledger only.
    LockWait,
    /// Waiting for anything else.
    Asleep,
    /// Time of threads beside another one, which the parts count twice: negative. In the ledger only.
    Overlap,
    /// The rest of the wall time. In the ledger only.
    Unexplained,
    /// The wall time.
    Wall,
    /// Not on a processor, for any reason: the runs do not say how long they waited for one.
    NotRunning,
}

/// A part of the wall time in all runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Entry {
    /// The part.
    pub part: TimePart,
    /// Mean seconds in good and bad runs.
    pub means: (f64, f64),
    /// The seconds that bad runs have more of it, with Welch's interval unless both sides are constant.
    pub added: Estimate,
}

impl Entry {
    pub(super) fn new(part: TimePart, values: &Both, alpha: f64) -> Self {
        Self { part, means: means(values), added: difference(&values[0], &values[1], alpha) }
    }
}

/// The looks at all threads at once, as seconds of each run's wall time.
pub(super) struct Remainder {
    asleep: Both,
    locked: Option<Both>,
    overlap: Both,
    /// Seconds in which threads were blocked and none was active, and those of blocked threads beside others.
    blocked: Option<[Both; 2]>,
    /// Seconds of threads that waited for locks while another was active.
    lock_wait: Option<Both>,
}

/// Reads a value of every run, unless a run lacks it.
type OfRuns<'a> = dyn Fn(&dyn Fn(&Run) -> Option<f64>) -> Option<Both> + 'a;

impl Remainder {
    pub(super) fn new(both: &OfRuns<'_>, wall: &Both) -> Option<Self> {
        let seen = both(&|run| count(run, "process.seen_seconds"))?;
        let part = |name: &'static str| {
            let share = |seconds: f64, seen: f64| if seen > 0.0 { seconds / seen } else { 0.0 };
            let shares = zip(&both(&|run| count(run, name))?, &seen, share);
            Some(zip(&shares, wall, |share, wall| share * wall))
        };
        Some(Self {
            asleep: part("process.asleep_seconds")?,
            locked: part("process.locked_seconds"),
            lock_wait: part("process.lock_wait_seconds"),
            overlap: part("process.overlap_seconds")?,
            blocked: part("process.blocked_seconds")
                .zip(part("process.blocked_beside_seconds"))
                .map(Into::into),
        })
    }

    /// Waits for locks beside active threads, which are no part of the wall time.
    pub(super) fn lock_wait(&self, alpha: f64) -> Option<Entry> {
        Some(Entry::new(TimePart::LockWait, self.lock_wait.as_ref()?, alpha))
    }

    /// Divides the time that is not on a processor and waits for neither a processor nor a disk. Blocked threads wait
    /// for a disk, for seconds that are known, or else for each other.
    pub(super) fn divide(&self, rest: &Both, disk: Option<&Both>, alpha: f64) -> Vec<Entry> {
        let none = || zip(rest, rest, |_, _| 0.0);
        let beside = self.blocked.as_ref().map_or_else(none, |[alone, beside]| {
            let disk = disk.map_or_else(none, |disk| less(disk, alone));
            zip(&disk, beside, |disk, beside| disk.min(beside).max(0.0))
        });
        let overlap = zip(&self.overlap, &beside, |overlap, beside| -overlap - beside);
        let unexplained = less(&less(rest, &self.asleep), &overlap);
        let asleep =
            self.locked.as_ref().map_or(self.asleep.clone(), |locked| less(&self.asleep, locked));
        let entry = |part, values: &Both| Entry::new(part, values, alpha);
        let mut all: Vec<Entry> =
            self.locked.iter().map(|locked| entry(TimePart::LockWait, locked)).collect();
        all.extend([
            entry(TimePart::Asleep, &asleep),
            entry(TimePart::Overlap, &overlap),
            entry(TimePart::Unexplained, &unexplained),
        ]);
        all
    }
}

/// The kind of a page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Answered without a device.
    Minor,
    /// Answered from a device.
    Major,
    /// Answered with a huge page, in the whole machine.
    Huge,
}

/// Page faults of a kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Faults {
    /// The kind.
    pub kind: FaultKind,
    /// Mean counts in good and bad runs.
    pub means: (f64, f64),
    /// The faults that bad runs have more, with Welch's interval unless both sides are constant.
    pub added: Estimate,
    /// The seconds of system time that those take: by the cost of a fault that runs of the same side show, where its
    /// interval is narrower than the cost itself, or else by the measured price.
    pub seconds: Option<Estimate>,
}

impl Faults {
    /// The kinds that the runs had, of those that they know.
    pub(super) fn all(
        both: &OfRuns<'_>,
        system: &Both,
        prices: Option<&Prices>,
        alpha: f64,
    ) -> Vec<Self> {
        let of = |(kind, name): (FaultKind, &'static str)| {
            let counts = both(&|run| count(run, name))?;
            let Entry { means, added, .. } = Entry::new(TimePart::System, &counts, alpha);
            let price = prices.and_then(|prices| match kind {
                FaultKind::Minor => Some(prices.fault),
                FaultKind::Huge => Some(prices.huge_fault),
                FaultKind::Major => None,
            });
            let price = price.map(|value| Estimate { value, interval: None });
            let seconds = cost(&counts, system, alpha).or(price).map(|cost| Estimate {
                value: cost.value * added.value,
                interval: cost.interval.map(|(low, high)| {
                    let (one, other) = (low * added.value, high * added.value);
                    (one.min(other), one.max(other))
                }),
            });
            (means != (0.0, 0.0)).then_some(Self { kind, means, added, seconds })
        };
        [
            (FaultKind::Minor, "rusage.minor_faults"),
            (FaultKind::Major, "rusage.major_faults"),
            (FaultKind::Huge, "vmstat.thp_fault_alloc"),
        ]
        .into_iter()
        .filter_map(of)
        .collect()
    }
}

/// The slope of seconds over counts among runs of the same side, if its interval is narrower than itself.
fn cost(counts: &Both, seconds: &Both, alpha: f64) -> Option<Estimate> {
    let (mut squares, mut both, mut rest, mut degrees) = (0.0, 0.0, 0.0, -1.0);
    let (count_means, seconds_means) = (means(counts), means(seconds));
    for (side, count_mean, seconds_mean) in
        [(0, count_means.0, seconds_means.0), (1, count_means.1, seconds_means.1)]
    {
        for (count, seconds) in counts[side].iter().zip(&seconds[side]) {
            let (count, seconds) = (count - count_mean, seconds - seconds_mean);
            squares += count * count;
            both += count * seconds;
            rest += seconds * seconds;
        }
        degrees += counts[side].len() as f64 - 1.0;
    }
    if squares == 0.0 || degrees < 1.0 {
        return None;
    }
    let value = both / squares;
    let error = ((rest - value * both).max(0.0) / degrees / squares).sqrt();
    let half = two_sided_quantile(alpha, degrees) * error;
    (half < value / 2.0).then_some(Estimate { value, interval: Some((value - half, value + half)) })
}

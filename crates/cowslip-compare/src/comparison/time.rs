//! Divides the time of runs: on a processor, waiting for one, waiting for a disk, asleep.
//!
//! The times of a command's threads are summed up. The parts add up to the wall time, and their differences to its
//! difference: the remainder is called asleep. For a program that runs on several processors at once the remainder is
//! negative, by as much as they ran at the same time. The ledger divides the remainder.

use serde::Serialize;

use super::ledger::{Entry, Faults, Remainder, TimePart};
use super::paired::{Both, added, count, less, mean, means, sum, zip};
use crate::Prices;
use crate::inputs::{Metric, Run, WALL};
use crate::stats::{Moments, Welch};

/// A part of the time, and its share of the difference.
///
/// Where others use the processors as well, time on one comes with waiting for one, and so does each wake-up. The
/// waiting that good runs have for each second, or for each wait for something else, is carried by that second, or by
/// that wait.
#[derive(Clone, Debug, Serialize)]
pub struct PartOfTime {
    /// The part.
    pub part: TimePart,
    /// Mean seconds in good and bad runs.
    pub means: (f64, f64),
    /// The part's share of the seconds that bad runs took longer; all parts together carry all of them.
    pub carried: f64,
    /// Welch's test of the carried seconds, as (good, bad), unless both sides are constant.
    pub welch: Option<Welch>,
}

impl PartOfTime {
    /// The seconds that bad runs have more of it.
    pub fn added(&self) -> f64 {
        self.means.1 - self.means.0
    }

    /// The seconds that bad runs have more of it; of waiting, with those for a processor after it.
    pub fn with_waits(&self) -> f64 {
        match self.part {
            TimePart::DiskWait | TimePart::Asleep => self.carried,
            _ => self.added(),
        }
    }

    /// Returns true if it is shown to differ.
    pub fn differs(&self, alpha: f64) -> bool {
        self.welch.map_or(self.carried != 0.0, |welch| welch.p < alpha)
    }
}

/// The division of all runs' time.
#[derive(Clone, Debug, Serialize)]
pub struct TimeSplit {
    /// Mean seconds of good and bad runs.
    pub means: (f64, f64),
    /// The parts, which add up to it.
    pub parts: Vec<PartOfTime>,
    /// The same with the last part divided as far as the recordings tell; its entries add up to the wall time, too.
    pub ledger: Vec<Entry>,
    /// The difference of the wall time.
    pub wall: Entry,
    /// Seconds of threads that waited for locks while another thread ran: the reason why fewer ran at once. They are no
    /// part of the wall time.
    pub lock_wait: Option<Entry>,
    /// Page faults by kind, a part of system time.
    pub faults: Vec<Faults>,
    /// The prices of the kernel's events, if they were measured before the runs.
    pub prices: Option<Prices>,
}

/// A part of the time carries a difference if it has at least this share of it: at least one of five parts does.
const LEAST_PART: f64 = 0.15;
/// Least processor time of all runs of a side that a tick of 4 ms divides well enough.
const LEAST_DIVIDED_SECONDS: f64 = 0.25;
/// Voluntary switches of a shell and of a program that only computes.
const FEW_WAKE_UPS: f64 = 20.0;
const SECTOR_BYTES: f64 = 512.0;
/// The times of each disk's requests.
const REQUESTS: [&str; 3] = [".read_wait_seconds", ".write_wait_seconds", ".flush_wait_seconds"];

impl TimeSplit {
    /// Divides runs that all have their wall time and the results of `wait4(2)`, two or more a side.
    pub fn from_runs(good: &[Run], bad: &[Run], alpha: f64) -> Option<Self> {
        let both = |of: &dyn Fn(&Run) -> Option<f64>| -> Option<Both> {
            let side = |runs: &[Run]| runs.iter().map(of).collect::<Option<Vec<f64>>>();
            Some([side(good)?, side(bad)?])
        };
        let total = |name: &'static str| move |run: &Run| Some(run.metrics.get(name)?.value());
        let wall = both(&total(WALL))?;
        let (user, system) =
            (both(&total("rusage.user_seconds"))?, both(&total("rusage.system_seconds"))?);
        let prices = Prices::from_runs(good, bad);
        let faults = Faults::all(&both, &system, prices.as_ref(), alpha);
        let running = sum(&user, &system);
        let waits = both(&|run| count(run, "process.schedstat.wait_seconds"));
        let woken = both(&total("rusage.voluntary_switches"));
        let usual = waits.as_ref().map(|waits| Usual::new(&waits[0], &running[0], woken.as_ref()));
        let of_running = usual.as_ref().map_or(0.0, |usual| usual.of_running);
        let carried = |values: &Both| zip(values, values, |value, _| value * (1.0 + of_running));
        let mut parts: Vec<(TimePart, Both, Both)> = Vec::new();
        let seconds = running.iter().map(|side| side.iter().sum::<f64>()).fold(0.0, f64::max);
        if seconds < LEAST_DIVIDED_SECONDS {
            parts.push((TimePart::Running, carried(&running), running.clone()));
        } else {
            parts.push((TimePart::User, carried(&user), user));
            parts.push((TimePart::System, carried(&system), system));
        }
        let mut rest = less(&wall, &running);
        match waits.zip(usual) {
            None => parts.push((TimePart::NotRunning, rest.clone(), rest)),
            Some((waits, usual)) => {
                rest = less(&rest, &waits);
                let mut beyond = zip(&waits, &running, |wait, running| wait - of_running * running);
                let woken = usual.for_wake_ups(woken.as_ref(), &beyond);
                beyond = less(&beyond, &woken);
                parts.push((TimePart::ProcessorWait, beyond, waits));
                let own = both(&|run| count(run, "process.disk_wait_seconds"));
                let disk = both(&disk_wait).map(|disk| {
                    let disk = zip(&disk, &rest, |disk, rest| disk.min(rest.max(0.0)));
                    let disk = own.as_ref().map_or(disk.clone(), |own| zip(own, &disk, f64::max));
                    rest = less(&rest, &disk);
                    disk
                });
                // The wake-ups belong to the part that grew more. Runs with more threads at once have less of the rest.
                let is_disk = disk.as_ref().is_some_and(|disk| added(disk) > added(&rest).max(0.0));
                if let Some(disk) = disk {
                    let carried = if is_disk { sum(&disk, &woken) } else { disk.clone() };
                    parts.push((TimePart::DiskWait, carried, disk));
                }
                let carried = if is_disk { rest.clone() } else { sum(&rest, &woken) };
                parts.push((TimePart::Asleep, carried, rest));
            }
        }
        let remainder = Remainder::new(&both, &wall);
        let disk = parts.iter().find(|(part, ..)| *part == TimePart::DiskWait);
        let disk = disk.map(|(_, _, values)| values);
        let ledger = parts
            .iter()
            .flat_map(|(part, _, values)| match &remainder {
                Some(remainder) if *part == TimePart::Asleep => {
                    remainder.divide(values, disk, alpha)
                }
                _ => vec![Entry::new(*part, values, alpha)],
            })
            .collect();
        let part = |(part, carried, values): (TimePart, Both, Both)| {
            let [good, bad] = [&carried[0], &carried[1]].map(|side| Moments::from_values(side));
            let welch = Welch::new(&good.ok()?, &bad.ok()?, alpha).ok();
            let carried = added(&carried);
            Some(PartOfTime { part, means: means(&values), carried, welch })
        };
        let parts = parts.into_iter().map(part).collect::<Option<Vec<_>>>()?;
        let lock_wait = remainder.and_then(|remainder| remainder.lock_wait(alpha));
        let wall = Entry::new(TimePart::Wall, &wall, alpha);
        Some(Self { means: wall.means, parts, ledger, lock_wait, wall, faults, prices })
    }
}

impl TimeSplit {
    /// The seconds that bad runs took longer.
    pub fn added(&self) -> f64 {
        self.means.1 - self.means.0
    }

    /// The parts with 15 % or more of the difference, the first cause first.
    ///
    /// Running more makes threads of the program wait for each other, so waiting comes after running, unless there is far
    /// more of it than running explains.
    pub fn carriers(&self) -> Vec<&PartOfTime> {
        let share = |part: &PartOfTime| part.carried / self.added();
        let mut parts: Vec<&PartOfTime> =
            self.parts.iter().filter(|part| share(part) >= LEAST_PART).collect();
        let is_running = |part: &PartOfTime| {
            matches!(part.part, TimePart::User | TimePart::System | TimePart::Running)
        };
        let carried_by = |is_it: &dyn Fn(&PartOfTime) -> bool| -> f64 {
            parts.iter().filter(|part| is_it(part)).map(|part| share(part)).sum()
        };
        let running = carried_by(&is_running);
        let waiting = carried_by(&|part| part.part == TimePart::ProcessorWait);
        let runs_more = running >= 0.5 && waiting <= 2.0 * running;
        let is_later = |part: &PartOfTime| runs_more && !is_running(part);
        parts.sort_by(|a, b| is_later(a).cmp(&is_later(b)).then(share(b).total_cmp(&share(a))));
        parts
    }
}

/// Waits of good runs for a processor because others use it.
struct Usual {
    /// Seconds of waiting for each second on a processor.
    of_running: f64,
    /// Seconds of waiting for each wait for something else.
    of_wake_up: f64,
    /// The number of waits for something else.
    woken: f64,
}

impl Usual {
    fn new(waits: &[f64], running: &[f64], woken: Option<&Both>) -> Self {
        let per = |count: f64| if count > 0.0 { mean(waits) / count } else { 0.0 };
        let woken = woken.map_or(0.0, |woken| mean(&woken[0]));
        // With a few wake-ups the waiting is that of running.
        Self { of_running: per(mean(running)), of_wake_up: per(woken + FEW_WAKE_UPS), woken }
    }

    /// The part of the waiting beyond that of running that comes with more wake-ups.
    fn for_wake_ups(&self, woken: Option<&Both>, beyond: &Both) -> Both {
        let usual =
            |woken: f64, beyond: f64| (self.of_wake_up * (woken - self.woken)).min(beyond).max(0.0);
        woken.map_or_else(|| zip(beyond, beyond, |_, _| 0.0), |woken| zip(woken, beyond, usual))
    }
}

/// The kernel's count of the command's waits for disks, if it has one, or the time of all requests of the machine: all
/// of it if the command moved a sector each time that it waited, less if it moved less. At least the time in which
/// looks found a thread of a command with disk traffic blocked, and none active. `None` without numbers of disks.
fn disk_wait(run: &Run) -> Option<f64> {
    let own = count(run, "process.disk_wait_seconds");
    let is_request =
        |name: &str| name.starts_with("disk.") && REQUESTS.iter().any(|what| name.ends_with(what));
    let all = run.metrics.iter().filter(|(name, _)| is_request(name));
    let requests = all.filter_map(|(_, metric)| Some(metric.growth()?.count)).reduce(|a, b| a + b);
    let moved = ["process.disk_read_bytes", "process.disk_written_bytes"];
    let moved: f64 = moved.iter().filter_map(|name| count(run, name)).sum();
    let waits = run.metrics.get("rusage.voluntary_switches").map_or(0.0, Metric::value);
    let share = (moved / (SECTOR_BYTES * waits.max(1.0))).min(1.0);
    let looked =
        count(run, "process.blocked_seconds").filter(|_| moved > 0.0).and_then(|blocked| {
            let seen = count(run, "process.seen_seconds").filter(|seen| *seen > 0.0)?;
            Some(blocked / seen * run.metrics.get(WALL)?.value())
        });
    let requests = requests.map(|seconds| seconds * share);
    own.into_iter().chain(requests).chain(looked).reduce(f64::max)
}

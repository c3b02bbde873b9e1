//! The counters that explain where the time of runs went.

mod known;
mod prices;

use serde::Serialize;

use crate::calls::{CallDifference, CallRow};
use crate::inputs::WALL;
use crate::{Comparison, PartOfTime, Row, TimePart, TimeSplit, Verdict};
pub(crate) use known::OF_MACHINE;
pub use known::is_consequence;
use known::{Cost, KNOWN, counted, differing, is_time};
pub use prices::Prices;

/// Counters of calls that system calls by name are better than.
const COUNTS_OF_CALLS: [&str; 2] = ["process.read_calls", "process.write_calls"];
/// A counter explains a part of the time that its events take by this share or more.
const LEAST_SHARE: f64 = 0.1;
/// Causes with less than this share of the greatest one's seconds are left out.
const LEAST_OF_GREATEST: f64 = 0.25;

/// A counter that explains a part of a difference of the wall time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cause {
    /// The part.
    pub part: TimePart,
    /// The metric, as its row is called; `calls.NAME` for a system call, `calls.NAME_seconds` for its time.
    pub counter: String,
    /// Its means in good and bad runs.
    pub means: (f64, f64),
    /// The seconds of a run that it explains, with the sign of the change.
    pub seconds: f64,
    /// Those as a share of the difference. Counters of the same events have it each.
    pub share: f64,
    /// The reason to believe it.
    pub certainty: Certainty,
}

/// The reason to believe that a counter explains a part of the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// It differs, and its events take a tenth of the part or more.
    Certain,
    /// It differs, and such time comes about by its events.
    Likely,
    /// One of these, but it differs perhaps only.
    Perhaps,
    /// It differs, and its events take less than a tenth of the part.
    Little,
}

impl Cause {
    /// The counters that explain the parts that carry the difference, the best first: by the prices of their events,
    /// or, if those explain nothing, by the way such time comes about. None if the wall time does not differ by `effect`, a
    /// part of the good mean. The cost of system calls is their recorded time.
    ///
    /// ```
    /// use cowslip_compare::inputs::Run;
    /// use cowslip_compare::{Cause, Certainty, Options, TimePart, TimeSplit, compare};
    ///
    /// let run = |system: f64, faults: f64| {
    ///     let run = Run::new("a run").with("wall_seconds", 1.0 + system).with("rusage.user_seconds", 1.0);
    ///     run.with("rusage.system_seconds", system).with("rusage.minor_faults", faults)
    /// };
    /// let good = [run(0.10, 1e3), run(0.11, 1e3), run(0.10, 1e3), run(0.12, 1e3)];
    /// let bad = [run(0.60, 1e6), run(0.61, 1e6), run(0.62, 1e6), run(0.60, 1e6)];
    /// let comparison = compare(&good, &bad, &Options::default())?;
    /// let split = TimeSplit::from_runs(&good, &bad, 0.05).unwrap();
    /// let causes = Cause::find(&comparison, &split, None, 0.05);
    /// assert_eq!((causes[0].part, &*causes[0].counter), (TimePart::System, "rusage.minor_faults"));
    /// assert_eq!(causes[0].certainty, Certainty::Certain);
    /// # Ok::<(), cowslip_compare::Error>(())
    /// ```
    pub fn find(
        comparison: &Comparison,
        split: &TimeSplit,
        calls: Option<&CallDifference>,
        effect: f64,
    ) -> Vec<Self> {
        let differs = |row: &&Row| {
            row.metric == WALL && row.verdict != Verdict::Unproven && row.matters(effect)
        };
        if comparison.primary_row().filter(differs).is_none() {
            return Vec::new();
        }
        let carriers = split.carriers();
        let prices = split.prices.unwrap_or(Prices::USUAL);
        let [mut found, mut how, mut little] = [const { Vec::new() }; 3];
        for (part, name, cost) in KNOWN {
            let Some(of) = carriers.iter().find(|carrier| holds(carrier.part, part)) else {
                continue;
            };
            let added = of.with_waits();
            for row in differing(comparison, name, effect) {
                let count = counted(row, split);
                if count.signum() != added.signum() {
                    continue;
                }
                let seconds = count * cost.seconds(&prices);
                let is_certain = row.verdict == Verdict::Differs;
                let cause = |seconds: f64, certainty| Self {
                    part: of.part,
                    counter: row.metric.clone(),
                    means: row.means,
                    seconds,
                    share: seconds / split.added(),
                    certainty: if is_certain { certainty } else { Certainty::Perhaps },
                };
                match cost {
                    Cost::About(_) if seconds / added >= LEAST_SHARE => {
                        let seconds = added.signum() * seconds.abs().min(added.abs());
                        found.push(cause(seconds, Certainty::Certain));
                    }
                    // A price may be wrong; seconds were measured.
                    Cost::About(_) if is_certain && !is_time(row) => {
                        little.push(cause(seconds, Certainty::Little));
                    }
                    Cost::Else(_) if seconds / added >= LEAST_SHARE => {
                        how.push(cause(added, Certainty::Likely));
                    }
                    Cost::About(_) | Cost::Else(_) => {}
                    Cost::Any => how.push(cause(added, Certainty::Likely)),
                }
            }
        }
        let from_calls = from_calls(calls, split, effect);
        if !from_calls.is_empty() {
            found.retain(|cause| {
                !COUNTS_OF_CALLS.iter().any(|name| cause.counter.starts_with(name))
            });
            found.extend(from_calls);
        }
        let all = [found, how, little].into_iter().find(|causes| !causes.is_empty());
        with_huge_pages(greatest(all.unwrap_or_default()), comparison, effect)
    }
}

/// System calls whose time explains a part.
fn from_calls(calls: Option<&CallDifference>, split: &TimeSplit, effect: f64) -> Vec<Cause> {
    let matters = |(good, bad): (f64, f64)| (bad - good).abs() >= effect * good;
    let cause = |carrier: &PartOfTime, row: &CallRow| {
        let added = carrier.with_waits();
        let seconds = row.added_to(carrier.part);
        let CallRow { name, count, elapsed, .. } = row;
        let (counter, of) = match matters(count.means) && count.added.is_certain() {
            true => (format!("calls.{name}"), count),
            false => (format!("calls.{name}_seconds"), elapsed),
        };
        let is_it = seconds / added >= LEAST_SHARE && matters(of.means);
        let seconds = added.signum() * seconds.abs().min(added.abs());
        is_it.then(|| Cause {
            part: carrier.part,
            counter,
            means: of.means,
            seconds,
            share: seconds / split.added(),
            certainty: if of.added.is_certain() { Certainty::Certain } else { Certainty::Perhaps },
        })
    };
    let rows = || calls.into_iter().flat_map(|found| &found.calls);
    let carriers = split.carriers().into_iter();
    carriers.flat_map(|carrier| rows().filter_map(move |row| cause(carrier, row))).collect()
}

/// Each counter once, the one with most seconds first, without those that explain much less.
fn greatest(mut all: Vec<Cause>) -> Vec<Cause> {
    // The sort is stable: equals stay in the table's order.
    all.sort_by(|a, b| b.seconds.abs().total_cmp(&a.seconds.abs()));
    let mut seen = Vec::new();
    all.retain(|cause| {
        let is_new = !seen.contains(&cause.counter);
        seen.push(cause.counter.clone());
        is_new
    });
    let most = all.first().map_or(0.0, |cause| cause.seconds.abs());
    all.retain(|cause| cause.seconds.abs() >= LEAST_OF_GREATEST * most);
    all
}

/// Adds huge pages next to the minor faults that take their place, and the other way round: the same seconds.
fn with_huge_pages(mut all: Vec<Cause>, comparison: &Comparison, effect: f64) -> Vec<Cause> {
    let Some(place) = all.iter().position(|cause| cause.counter == "rusage.minor_faults") else {
        return all;
    };
    let faults = all[place].clone();
    let rises = |(good, bad): (f64, f64)| bad > good;
    let huge = differing(comparison, "vmstat.thp_fault_alloc", effect)
        .find(|row| rises(row.means) != rises(faults.means));
    if let Some(row) = huge {
        let is_certain = row.verdict == Verdict::Differs;
        let certainty = if is_certain { faults.certainty } else { Certainty::Perhaps };
        let (counter, means) = (row.metric.clone(), row.means);
        all.insert(place + 1, Cause { counter, means, certainty, ..faults });
    }
    all
}

/// Processor time, or time off a processor, includes its parts if it is not divided into them.
fn holds(whole: TimePart, part: TimePart) -> bool {
    match whole {
        TimePart::Running => matches!(part, TimePart::User | TimePart::System),
        TimePart::NotRunning => {
            matches!(part, TimePart::ProcessorWait | TimePart::DiskWait | TimePart::Asleep)
        }
        _ => whole == part,
    }
}

/// Counters that differ and usually cost more than a hundredth of the good runs' time, the most expensive first.
pub fn costly<'a>(comparison: &'a Comparison, split: &TimeSplit, effect: f64) -> Vec<&'a Row> {
    let prices = split.prices.unwrap_or(Prices::USUAL);
    let mut all: Vec<(f64, &Row)> = Vec::new();
    for (_, name, cost) in KNOWN {
        let Cost::About(_) = cost else { continue };
        let rows = differing(comparison, name, effect);
        for row in rows.filter(|row| row.verdict == Verdict::Differs) {
            let share = (counted(row, split) * cost.seconds(&prices) / split.means.0).abs();
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

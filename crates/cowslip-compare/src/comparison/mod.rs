//! Tests every metric of good and bad runs, and ranks those that differ.

mod copies;
mod facts;
mod ledger;
mod measure;
mod notes;
mod options;
mod paired;
mod result;
mod row;
mod time;
mod values;

use std::collections::BTreeMap;

use crate::inputs::{Run, WALL, find_counters};
use crate::stats::{adjusted, max_t};
use crate::{Error, Result};

pub use facts::FactDifference;
pub use ledger::{Entry, FaultKind, Faults, TimePart};
pub use measure::{Counters, Measure};
pub use options::Options;
pub use result::Comparison;
pub use row::{Row, Verdict};
pub use time::{PartOfTime, TimeSplit};
pub use values::Unit;

use values::{Tested, Values, values};

/// Compares good runs with bad ones.
pub fn compare(good: &[Run], bad: &[Run], options: &Options) -> Result<Comparison> {
    for (name, value) in [("alpha", options.alpha), ("fdr", options.fdr)] {
        if !(value > 0.0 && value < 1.0) {
            return Err(Error::usage(format!("{name} is {value}, not between 0 and 1")));
        }
    }
    let (mut good, mut bad) = (good.to_vec(), bad.to_vec());
    let growing = find_counters(&mut good.iter_mut().chain(&mut bad).collect::<Vec<_>>());
    let unit = Unit::from_runs(&good, &bad);
    let mut comparison = Comparison {
        unit,
        runs: (good.len(), bad.len()),
        primary: None,
        counters: None,
        rows: Vec::new(),
        constant: Vec::new(),
        only_good: Vec::new(),
        only_bad: Vec::new(),
        too_few: Vec::new(),
        too_coarse: Vec::new(),
        facts: facts::differences(&good, &bad),
        notes: Vec::new(),
    };
    let by_default = match unit {
        Unit::Run => Measure::by_default(&good, &bad),
        Unit::Sample => Measure::Rate,
    };
    let mut counters = Counters { by_default, counts: 0, rates: 0 };
    for Tested { name, measure, values } in values(&good, &bad, unit, by_default) {
        counters.counts += usize::from(measure == Measure::Count);
        counters.rates += usize::from(measure == Measure::Rate);
        match values {
            Values::Both(good, bad) => {
                comparison.rows.push(Row::new(name, measure, good, bad, options));
            }
            Values::Constant => comparison.constant.push(name),
            Values::OnlyGood => comparison.only_good.push(name),
            Values::OnlyBad => comparison.only_bad.push(name),
            Values::TooFew => comparison.too_few.push(name),
            Values::TooCoarse => comparison.too_coarse.push(name),
        }
    }
    let is_empty = comparison.rows.is_empty() && comparison.constant.is_empty();
    if let Some(advice) = notes::advice(&good, &bad).next().filter(|_| is_empty) {
        return Err(Error::usage(format!("no metric has two values on both sides: {advice}")));
    }
    comparison.primary = primary(&comparison, options)?;
    comparison.counters = (counters.counts + counters.rates > 0).then_some(counters);
    copies::find(&mut comparison.rows);
    judge(&mut comparison, options);
    let primary = comparison.primary.clone();
    for row in comparison.rows.iter_mut().filter(|row| Some(&row.metric) == primary.as_ref()) {
        row.measure_shift(options.alpha);
    }
    if unit == Unit::Sample && comparison.runs == (1, 1) {
        comparison.rows.iter_mut().for_each(Row::measure_dependence);
    }
    sort(&mut comparison.rows);
    comparison.notes = notes::notes(&comparison, &good, &bad, &growing, options.alpha);
    Ok(comparison)
}

/// Gives each row its p among all: of few runs by arranging them anew, else by the false discovery rate. The one metric that was chosen beforehand does not pay for the others, and a copy
/// counts once: it has the p of its original, if that is larger.
fn judge(comparison: &mut Comparison, options: &Options) {
    let primary = comparison.primary.clone();
    let is_primary = |row: &Row| Some(&row.metric) == primary.as_ref();
    let counts = |row: &&Row| !is_primary(row) && row.copy_of.is_none();
    let tested: Vec<&Row> = comparison.rows.iter().filter(counts).collect();
    let values: Vec<_> = tested.iter().map(|row| (&row.good[..], &row.bad[..])).collect();
    let of_runs = (comparison.unit == Unit::Run).then(|| max_t(&values)).flatten();
    let of_tested =
        of_runs.unwrap_or_else(|| adjusted(&tested.iter().map(|row| row.p).collect::<Vec<_>>()));
    let mut of_tested = of_tested.into_iter();
    let mut next = |row: &Row| if counts(&row) { of_tested.next() } else { None };
    let adjusted: Vec<f64> =
        comparison.rows.iter().map(|row| next(row).unwrap_or(f64::NAN)).collect();
    let of_originals: BTreeMap<String, f64> =
        comparison.rows.iter().zip(&adjusted).map(|(row, p)| (row.metric.clone(), *p)).collect();
    for (row, adjusted) in comparison.rows.iter_mut().zip(adjusted) {
        let name = row.copy_of.as_ref().filter(|_| !is_primary(row));
        let original = name.and_then(|name| of_originals.get(name).copied());
        // The largest of those that are numbers.
        row.judge(row.p.max(adjusted).max(original.unwrap_or(f64::NAN)), options);
    }
}

/// Names of columns of tables that hold the time a run took, with or without a unit.
const DURATIONS: [&str; 6] = ["time", "elapsed", "wall", "real", "duration", "runtime"];
const UNITS: [&str; 12] = [
    "seconds",
    "secs",
    "sec",
    "s",
    "milliseconds",
    "msec",
    "ms",
    "microseconds",
    "usec",
    "us",
    "nanoseconds",
    "ns",
];

/// Returns true for `time`, `elapsed_ms` and `Duration (s)`.
fn is_duration(name: &str) -> bool {
    let name = name.to_lowercase();
    let mut words =
        name.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    let (first, unit) = (words.next().unwrap_or_default(), words.next());
    DURATIONS.contains(&first)
        && unit.is_none_or(|unit| UNITS.contains(&unit))
        && words.next().is_none()
}

/// The name of the metric that the comparison is about, in the form of its row: the wanted one, the wall time, or the only
/// duration of a table.
fn primary(comparison: &Comparison, options: &Options) -> Result<Option<String>> {
    let names = || comparison.rows.iter().map(|row| &row.metric).chain(&comparison.constant);
    let find = |wanted: &str| {
        names().find(|name| **name == wanted || name.strip_suffix("/s") == Some(wanted)).cloned()
    };
    if let Some(wanted) = &options.primary {
        let found = find(wanted);
        return found.map(Some).ok_or_else(|| {
            Error::usage(format!(
                "no metric called {wanted} has two values on both sides and is compared"
            ))
        });
    }
    let mut durations = names().filter(|name| is_duration(name));
    let only = || durations.next().filter(|_| durations.next().is_none()).cloned();
    Ok(find(WALL).or_else(only))
}

fn sort(rows: &mut [Row]) {
    let change = |row: &Row| row.change.map_or(f64::INFINITY, |estimate| estimate.value.abs());
    rows.sort_by(|a, b| {
        let order = a.t_or_sign().total_cmp(&b.t_or_sign());
        order.then(change(b).total_cmp(&change(a)))
    });
}

//! Tests every metric of good and bad runs, and ranks those that differ.

mod facts;
mod ledger;
mod measure;
mod notes;
mod row;
mod time;
mod values;

use serde::Serialize;

use crate::inputs::{Run, find_counters};
use crate::stats::adjusted;
use crate::{Error, Result};

pub use facts::FactDifference;
pub use ledger::{Entry, FaultKind, Faults};
pub use measure::{Counters, Measure};
pub use row::{Row, Verdict};
pub use time::{PartOfTime, TimePart, TimeSplit};
pub use values::Unit;

use values::{Tested, Values, values};

/// The time that a run took: the metric that a comparison is about by default.
pub const WALL: &str = "wall_seconds";

/// Options of a comparison.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The level of each test, and one minus the confidence of the intervals.
    pub alpha: f64,
    /// The accepted share of false ones among the metrics that are said to differ.
    pub fdr: f64,
    /// The metric that the comparison is about, and that is tested alone; by default [`WALL`], if the runs have it.
    pub primary: Option<String>,
    /// The change that the advice on runs is about, as a part of the good mean.
    pub wanted_change: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { alpha: 0.05, fdr: 0.05, primary: None, wanted_change: 0.05 }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The unit of one value.
    pub unit: Unit,
    /// The numbers of good and bad runs.
    pub runs: (usize, usize),
    /// The metric that it is about, if there is one; it is in [`Self::rows`] unless it is the same everywhere.
    pub primary: Option<String>,
    /// The way that counters were compared, if there are any.
    pub counters: Option<Counters>,
    /// The tested metrics by ascending t of (good, bad): those that grew come first.
    pub rows: Vec<Row>,
    /// Metrics with the same value everywhere.
    pub constant: Vec<String>,
    /// Metrics of the good runs only.
    pub only_good: Vec<String>,
    /// Metrics of the bad runs only.
    pub only_bad: Vec<String>,
    /// Metrics with fewer than two values on a side.
    pub too_few: Vec<String>,
    /// Shares of time in runs too short for the ticks of their clock.
    pub too_coarse: Vec<String>,
    /// Known facts about the runs that differ between the sides.
    pub facts: Vec<FactDifference>,
    /// Warnings that a reader must know before believing the result.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Returns true if any metric differs.
    pub fn differs(&self) -> bool {
        self.rows.iter().any(|row| row.verdict == Verdict::Differs)
    }

    /// The row of the metric that it is about; `None` also for a metric that is the same everywhere.
    pub fn primary_row(&self) -> Option<&Row> {
        self.rows.iter().find(|row| Some(&row.metric) == self.primary.as_ref())
    }
}

/// Compares good runs with bad ones.
pub fn compare(good: &[Run], bad: &[Run], options: &Options) -> Result<Comparison> {
    for (name, value) in [("alpha", options.alpha), ("fdr", options.fdr)] {
        if !(value > 0.0 && value < 1.0) {
            return Err(Error::usage(format!("{name} is {value}, not between 0 and 1")));
        }
    }
    let (mut good, mut bad) = (good.to_vec(), bad.to_vec());
    let found = find_counters(&mut good.iter_mut().chain(&mut bad).collect::<Vec<_>>());
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
    comparison.primary = primary(&comparison, options)?;
    comparison.counters = (counters.counts + counters.rates > 0).then_some(counters);
    // The one metric that was chosen beforehand does not pay for the others.
    let is_primary = |row: &Row| Some(&row.metric) == comparison.primary.as_ref();
    let p = comparison.rows.iter().map(|row| if is_primary(row) { f64::NAN } else { row.p });
    for (row, adjusted) in adjusted(&p.collect::<Vec<_>>()).into_iter().enumerate() {
        let row = &mut comparison.rows[row];
        row.judge(if adjusted.is_nan() { row.p } else { adjusted }, options);
    }
    let primary = comparison.primary.clone();
    for row in comparison.rows.iter_mut().filter(|row| Some(&row.metric) == primary.as_ref()) {
        row.measure_shift(options.alpha);
    }
    if unit == Unit::Sample && comparison.runs == (1, 1) {
        comparison.rows.iter_mut().for_each(Row::measure_dependence);
    }
    sort(&mut comparison.rows);
    comparison.notes = notes::notes(&comparison, &good, &bad, &found, options.alpha);
    Ok(comparison)
}

/// The name of the metric that the comparison is about, in the form of its row.
fn primary(comparison: &Comparison, options: &Options) -> Result<Option<String>> {
    let wanted = options.primary.as_deref().unwrap_or(WALL);
    let names = comparison.rows.iter().map(|row| &row.metric).chain(&comparison.constant);
    let is_it = |name: &&String| **name == wanted || name.strip_suffix("/s") == Some(wanted);
    match (names.into_iter().find(is_it), &options.primary) {
        (None, Some(wanted)) => Err(Error::usage(format!(
            "no metric called {wanted} has two values on both sides and is compared"
        ))),
        (found, _) => Ok(found.cloned()),
    }
}

fn sort(rows: &mut [Row]) {
    let change = |row: &Row| row.change.map_or(f64::INFINITY, |estimate| estimate.value.abs());
    rows.sort_by(|a, b| {
        let order = a.t_or_sign().total_cmp(&b.t_or_sign());
        order.then(change(b).total_cmp(&change(a)))
    });
}

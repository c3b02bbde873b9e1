//! The result of a comparison.

use serde::Serialize;

use super::{Counters, FactDifference, Row, Unit, Verdict};

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

//! What one value is, and the values of each metric on both sides.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::inputs::Run;
use crate::{Error, Result};

/// What is asked for as one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitChoice {
    /// A run where there are two or more on each side, else a sample.
    Auto,
    /// A run: its mean, or rate over all of it.
    Run,
    /// A sample within a run.
    Sample,
}

/// What one value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A run.
    Run,
    /// A sample; those of one run may depend on each other.
    Sample,
}

impl Unit {
    pub(super) fn choose(choice: UnitChoice, good: &[Run], bad: &[Run]) -> Result<Self> {
        let fewest = good.len().min(bad.len());
        match choice {
            UnitChoice::Sample => Ok(Self::Sample),
            UnitChoice::Auto if fewest < 2 => Ok(Self::Sample),
            UnitChoice::Run if fewest < 2 => Err(Error::usage(format!(
                "{} good and {} bad runs: a test of runs needs two on each side",
                good.len(),
                bad.len()
            ))),
            UnitChoice::Auto | UnitChoice::Run => Ok(Self::Run),
        }
    }
}

/// The values of one metric, if it can be tested.
pub(super) enum Values {
    Both(Vec<f64>, Vec<f64>),
    Constant,
    OnlyGood,
    OnlyBad,
    TooFew,
}

/// Every metric of any run, in the order of their names.
pub(super) fn values<'a>(
    good: &'a [Run],
    bad: &'a [Run],
    unit: Unit,
) -> impl Iterator<Item = (String, Values)> + 'a {
    let names: BTreeSet<&String> =
        good.iter().chain(bad).flat_map(|run| run.metrics.keys()).collect();
    names.into_iter().map(move |name| {
        let (good, bad) = (of_side(good, name, unit), of_side(bad, name, unit));
        let first = good.first().or(bad.first());
        let values = match (good.len(), bad.len()) {
            (_, 0) => Values::OnlyGood,
            (0, _) => Values::OnlyBad,
            (1, _) | (_, 1) => Values::TooFew,
            _ if good.iter().chain(&bad).all(|value| Some(value) == first) => Values::Constant,
            _ => Values::Both(good, bad),
        };
        (name.clone(), values)
    })
}

fn of_side(runs: &[Run], name: &str, unit: Unit) -> Vec<f64> {
    let metrics = runs.iter().filter_map(|run| run.metrics.get(name));
    match unit {
        Unit::Run => metrics.map(|metric| metric.value()).collect(),
        Unit::Sample => metrics.flat_map(|metric| metric.samples()).copied().collect(),
    }
}

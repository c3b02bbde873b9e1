//! The unit of a value, and the values of each metric on both sides.

use std::collections::BTreeSet;

use serde::Serialize;

use super::Measure;
use super::measure::seen;
use crate::inputs::{Growth, Metric, Run};

/// The unit of one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A run.
    Run,
    /// A sample; samples of one run may depend on each other.
    Sample,
}

impl Unit {
    /// A run if there are two or more on each side, else a sample.
    pub(super) fn from_runs(good: &[Run], bad: &[Run]) -> Self {
        if good.len().min(bad.len()) < 2 { Self::Sample } else { Self::Run }
    }
}

/// The values of one metric, if it can be tested.
pub(super) enum Values {
    Both(Vec<f64>, Vec<f64>),
    Constant,
    OnlyGood,
    OnlyBad,
    TooFew,
    TooCoarse,
}

/// Metrics of a process and its descendants by the recorder, and by `wait4(2)`.
const SAME: [(&str, &str); 4] = [
    ("process.seen_seconds", "wall_seconds"),
    ("process.minor_faults", "rusage.minor_faults"),
    ("process.major_faults", "rusage.major_faults"),
    ("process.cpu_share", "rusage.user_seconds"),
];

/// A metric of both sides.
pub(super) struct Tested {
    /// The metric's name; a rate ends with `/s`.
    pub(super) name: String,
    pub(super) measure: Measure,
    pub(super) values: Values,
}

/// Returns true if each run has a better value of the same thing.
fn is_said_better(name: &str, good: &[Run], bad: &[Run]) -> bool {
    let better = SAME.iter().find(|(seen, _)| *seen == name).map(|(_, better)| *better);
    let has = |run: &Run| better.is_some_and(|better| run.metrics.contains_key(better));
    good.iter().chain(bad).all(has)
}

/// Every metric of any run, in the order of their names; only one of two for the same thing.
pub(super) fn values<'a>(
    good: &'a [Run],
    bad: &'a [Run],
    unit: Unit,
    by_default: Measure,
) -> impl Iterator<Item = Tested> + 'a {
    let names: BTreeSet<&String> =
        good.iter().chain(bad).flat_map(|run| run.metrics.keys()).collect();
    let names = names
        .into_iter()
        .filter(move |name| unit == Unit::Sample || !is_said_better(name, good, bad));
    names.map(move |name| {
        let sides = [good, bad].map(|runs| -> Vec<&Metric> {
            runs.iter().filter_map(|run| run.metrics.get(name)).collect()
        });
        let measure = measure(&sides, unit, by_default);
        let is_coarse = unit == Unit::Run && sides.iter().flatten().any(|metric| metric.is_coarse);
        let [good, bad] = sides.map(|side| of_side(&side, unit, measure));
        let first = good.first().or(bad.first());
        let values = match (good.len(), bad.len()) {
            (_, 0) => Values::OnlyGood,
            (0, _) => Values::OnlyBad,
            (1, _) | (_, 1) => Values::TooFew,
            _ if is_coarse => Values::TooCoarse,
            _ if good.iter().chain(&bad).all(|value| Some(value) == first) => Values::Constant,
            _ => Values::Both(good, bad),
        };
        let name = if measure == Measure::Rate { format!("{name}/s") } else { name.clone() };
        Tested { name, measure, values }
    })
}

fn measure(sides: &[Vec<&Metric>; 2], unit: Unit, by_default: Measure) -> Measure {
    let of = |side: &Vec<&Metric>| -> Vec<Growth> {
        side.iter().filter_map(|metric| metric.growth()).collect()
    };
    let [good, bad] = [of(&sides[0]), of(&sides[1])];
    match good.len() + bad.len() {
        0 => Measure::Value,
        _ if unit == Unit::Sample => Measure::Rate,
        // A source that gives one number counted it in the run.
        growths if growths < sides[0].len() + sides[1].len() => Measure::Count,
        _ => seen([&good, &bad]).unwrap_or(by_default),
    }
}

fn of_side(metrics: &[&Metric], unit: Unit, measure: Measure) -> Vec<f64> {
    let count = |metric: &&Metric| metric.growth().map_or(metric.value(), |growth| growth.count);
    match unit {
        Unit::Run if measure == Measure::Count => metrics.iter().map(count).collect(),
        Unit::Run => metrics.iter().map(|metric| metric.value()).collect(),
        Unit::Sample => metrics.iter().flat_map(|metric| metric.samples()).copied().collect(),
    }
}

//! Warnings that a reader must know before believing a comparison.

use std::collections::BTreeSet;

use super::{Comparison, Counters, Measure, Unit, Verdict};
use crate::inputs::Run;

/// From this ratio of sizes on, and below this many values, Welch's test finds too much.
const UNEQUAL: f64 = 1.5;
const SMALL: usize = 15;
/// Fewer values do not show their distribution.
const FEW: usize = 4;

pub(super) fn notes(
    comparison: &Comparison,
    good: &[Run],
    bad: &[Run],
    found: &[String],
    alpha: f64,
) -> Vec<String> {
    let mut notes = Vec::new();
    let rows = &comparison.rows;
    if comparison.unit == Unit::Sample {
        notes.push(dependence(comparison));
    }
    let sizes = rows.iter().map(|row| (row.good.len(), row.bad.len()));
    let sizes: Vec<_> = sizes.map(|(good, bad)| (good.min(bad), good.max(bad))).collect();
    let is_unequal =
        |(few, many): &&(usize, usize)| *few < SMALL && *many as f64 >= UNEQUAL * *few as f64;
    let unequal = sizes.iter().filter(is_unequal).count();
    if unequal > 0 {
        notes.push(format!(
            "{unequal} metrics have few values on one side and more on the other: Welch's test then says too often \
             that they differ (docs/compare.md); have as many runs on both sides"
        ));
    }
    let few: Vec<&str> = rows
        .iter()
        .zip(&sizes)
        .filter(|(_, size)| size.0 < FEW)
        .map(|(row, _)| &*row.metric)
        .collect();
    if !few.is_empty() {
        let of = match few.len() == rows.len() {
            true => String::new(),
            false => format!(" of {}", few.join(", ")),
        };
        notes.push(format!(
            "fewer than {FEW} values{of} on a side: only great differences can be found, and the tests rely on \
             normally distributed values"
        ));
    }
    let disagree =
        rows.iter().filter(|row| row.verdict == Verdict::Differs && row.rank.p > alpha).count();
    if disagree > 0 {
        notes.push(format!(
            "of {disagree} metrics that differ by their means the rank test sees nothing: look at their values \
             for outliers"
        ));
    }
    notes.extend(comparison.counters.filter(|_| comparison.unit == Unit::Run).map(measures));
    if !found.is_empty() {
        let list = found.join(", ");
        notes.push(format!(
            "taken for counters, as they only grow: {list}; what counts is their growth"
        ));
    }
    let left_out: usize = good.iter().chain(bad).map(|run| run.left_out).sum();
    if left_out > 0 {
        notes.push(format!(
            "{left_out} columns of text and values that are not finite were left out"
        ));
    }
    for (side, runs) in [("good", good), ("bad", bad)] {
        let failed: usize = runs.iter().map(|run| run.failed_runs).sum();
        if failed > 0 {
            let all = failed + runs.len();
            notes.push(format!("{failed} of {all} {side} runs failed and were left out"));
        }
    }
    notes.extend(advice(good, bad).map(str::to_owned));
    notes
}

/// The advice for files of the runs, once each.
pub(super) fn advice(good: &[Run], bad: &[Run]) -> impl Iterator<Item = &'static str> {
    let all: BTreeSet<&str> = good.iter().chain(bad).filter_map(|run| run.advice).collect();
    all.into_iter()
}

fn measures(counters: Counters) -> String {
    let Counters { by_default, counts, rates } = counters;
    match by_default {
        Measure::Count => format!(
            "{counts} counters are compared by what they counted in a run, and {rates} that go with the time it took \
             by what they counted in a second (NAME/s)"
        ),
        _ => format!(
            "{rates} counters are compared by what they counted in a second (NAME/s), and {counts} that do not go with \
             the time a run took by what they counted in it"
        ),
    }
}

fn dependence(comparison: &Comparison) -> String {
    let (good, bad) = comparison.runs;
    if good > 1 || bad > 1 {
        return format!(
            "samples of {good} good and {bad} bad runs count as independent, which those of the same run are \
             not: their p is too small"
        );
    }
    let shares = comparison.rows.iter().filter_map(|row| row.independent_share);
    let least = shares.clone().fold(1.0, f64::min);
    let (dependent, all) = (shares.count(), comparison.rows.len());
    if dependent == 0 {
        return "one run on each side: what differs may differ between any two runs; several of each would tell"
            .to_owned();
    }
    format!(
        "one run on each side, and the samples of {dependent} of {all} metrics depend on the ones before (as few \
         as {:.0} % of them count): their p is too small; record several runs of each",
        100.0 * least
    )
}

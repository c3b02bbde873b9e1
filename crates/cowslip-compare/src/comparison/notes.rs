//! Warnings that a reader must know before believing a comparison.

use std::collections::{BTreeMap, BTreeSet};

use super::{Comparison, Counters, Measure, Unit, Verdict};
use crate::inputs::{Growing, Run};

/// From this ratio of sizes on, and below this many values, Welch's test finds too much.
const UNEQUAL: f64 = 1.5;
const SMALL: usize = 15;
/// Fewer values do not show their distribution.
const FEW: usize = 4;
/// A sentence does not name more.
const MOST_NAMED: usize = 12;

pub(super) fn notes(
    comparison: &Comparison,
    good: &[Run],
    bad: &[Run],
    growing: &Growing,
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
    for (names, way) in [
        (&growing.counters, "counters by their names, compared by their growth (NAME/row)"),
        (
            &growing.either,
            "perhaps counters, compared by their values and by their growth (NAME/row)",
        ),
    ] {
        if !names.is_empty() {
            notes.push(format!("{} only grow: {way}", names.join(", ")));
        }
    }
    notes.extend(left_out(good, bad));
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

/// Columns and values that the files have and the comparison has not.
fn left_out(good: &[Run], bad: &[Run]) -> Option<String> {
    let all = || good.iter().chain(bad);
    let columns: BTreeSet<&String> = all().flat_map(|run| &run.left_out).collect();
    let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, count) in all().flat_map(|run| &run.missing) {
        *missing.entry(name).or_default() += count;
    }
    let missing = missing.into_iter().map(|(name, count)| match count {
        1 => format!("a missing value of `{name}`"),
        many => format!("{many} missing values of `{name}`"),
    });
    let mut phrases: Vec<String> = columns.into_iter().cloned().chain(missing).collect();
    let more = phrases.len().saturating_sub(MOST_NAMED);
    phrases.truncate(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!phrases.is_empty()).then(|| format!("left out: {}{more}", phrases.join(", ")))
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

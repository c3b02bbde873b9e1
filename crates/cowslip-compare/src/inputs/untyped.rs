//! Counters from sources that do not mark counters.

use std::collections::BTreeSet;

use super::{Metric, Run};

/// This many values in order are hardly by chance: one in 8! a run.
const ENOUGH: usize = 8;

/// Turns metrics without a type that never fall, in any run, into their growth a row, called `NAME/row`. Returns their
/// names.
pub(crate) fn find_counters(runs: &mut [&mut Run]) -> Vec<String> {
    let names: BTreeSet<String> = runs
        .iter()
        .flat_map(|run| run.metrics.iter().filter(|(_, metric)| metric.is_untyped))
        .map(|(name, _)| name.clone())
        .collect();
    let only_grows = |run: &&mut Run, name: &String| {
        run.metrics.get(name).is_none_or(|metric| {
            let samples = metric.samples();
            metric.is_untyped
                && samples.len() >= ENOUGH
                && samples.is_sorted()
                && samples[0] < samples[samples.len() - 1]
        })
    };
    let counters = names.into_iter().filter(|name| runs.iter().all(|run| only_grows(run, name)));
    let counters: Vec<String> = counters.collect();
    for run in runs {
        for name in &counters {
            if let Some(metric) = run.metrics.remove(name) {
                let growth = metric.samples().windows(2).map(|two| (1.0, two[1] - two[0]));
                run.add(&format!("{name}/row"), Metric::rates(growth));
            }
        }
    }
    counters
}

//! Counters from sources that do not mark counters.

use std::collections::BTreeSet;

use super::{Metric, Run};

/// This many values in order are hardly by chance: one in 8! a run.
const ENOUGH: usize = 8;

/// Parts of the names of counters.
const COUNTERS: [&str; 16] = [
    "total", "count", "fault", "pgpg", "pswp", "ctxt", "intr", "switch", "packets", "requests",
    "ticks", "jiffies", "errors", "calls", "reads", "writes",
];

/// Metrics without a type that never fall, in any run.
#[derive(Default)]
pub(crate) struct Growing {
    /// Counters by their names: they are compared by their growth a row, as `NAME/row`, alone.
    pub(crate) counters: Vec<String>,
    /// Counters or levels that rise: they are compared both ways.
    pub(crate) either: Vec<String>,
}

/// Finds them, and gives the runs their growth.
pub(crate) fn find_counters(runs: &mut [&mut Run]) -> Growing {
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
    let mut found = Growing::default();
    for name in names {
        if !runs.iter().all(|run| only_grows(run, &name)) {
            continue;
        }
        let lower = name.to_lowercase();
        let is_counter = COUNTERS.iter().any(|part| lower.contains(part));
        for run in &mut *runs {
            let Some(metric) = run.metrics.get(&name) else { continue };
            let growth = metric.samples().windows(2).map(|two| (1.0, two[1] - two[0]));
            let growth = Metric::rates(growth);
            if is_counter {
                run.metrics.remove(&name);
            }
            run.add(&format!("{name}/row"), growth);
        }
        if is_counter { &mut found.counters } else { &mut found.either }.push(name);
    }
    found
}

//! One entry of a series.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cause::OF_MACHINE;
use crate::inputs::{Metric, Run};
use crate::stats::median;
use crate::{Error, Prices, Result};

/// The format of an entry's line; each line contains it.
pub const SCHEMA: &str = "cowslip.history/1";

/// The facts that make a machine: entries that differ in one are not compared.
pub const MACHINE: [&str; 6] =
    ["cpu.model", "cpu.count", "cpu.mhz", "kernel", "thp.enabled", "build"];

/// The values of each metric, one for each run that has it.
pub type Metrics = BTreeMap<String, Vec<f64>>;

/// The runs of one commit on one machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// [`SCHEMA`]
    pub schema: String,
    /// Nanoseconds since 1970 UTC.
    pub time_unix_ns: u64,
    /// The commit that was measured, if it is known; it ends with `-dirty` if files differed from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// A name for people, such as a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Facts about the machine and the command.
    pub facts: BTreeMap<String, String>,
    /// The prices of the kernel's events, if they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<Prices>,
    /// The values of all runs.
    pub metrics: Metrics,
}

impl Entry {
    /// An entry of runs. Facts of the runs replace those in `here`, the facts of this machine. If one of
    /// [`MACHINE`] differs, the runs are of another machine, and nothing of `here` is used.
    ///
    /// # Errors
    /// The runs have no metric.
    pub fn from_runs(
        runs: &[Run],
        here: &BTreeMap<String, String>,
        time_unix_ns: u64,
    ) -> Result<Self> {
        let mut metrics = Metrics::new();
        for run in runs {
            let of_command = run
                .metrics
                .iter()
                .filter(|(name, _)| !OF_MACHINE.iter().any(|start| name.starts_with(start)));
            for (name, metric) in of_command {
                metrics.entry(name.clone()).or_default().push(value(metric));
            }
        }
        if metrics.is_empty() {
            return Err(Error::usage("the runs have no metric of a command"));
        }
        let of_runs = runs.first().map(|run| BTreeMap::clone(&run.facts)).unwrap_or_default();
        let is_elsewhere = MACHINE.iter().any(|name| {
            let both = of_runs.get(*name).zip(here.get(*name));
            both.is_some_and(|(there, here)| there != here)
        });
        let mut facts = if is_elsewhere { BTreeMap::new() } else { here.clone() };
        facts.extend(of_runs);
        let commit = facts.remove("commit");
        let schema = SCHEMA.to_owned();
        let prices = Prices::from_runs(runs, &[]);
        Ok(Self { schema, time_unix_ns, commit, label: None, facts, prices, metrics })
    }

    /// One run with the medians of all.
    pub(super) fn median_run(&self) -> Run {
        let run = Run { prices: self.prices, ..Run::default() };
        let medians = self.metrics.iter().filter_map(|(name, values)| {
            Some((name, median(values.iter().copied().filter(|value| value.is_finite()))?))
        });
        medians.fold(run, |run, (name, value)| run.with(name, value))
    }
}

/// The count of a counter in the run; the value of any other metric.
fn value(metric: &Metric) -> f64 {
    metric.growth().map_or(metric.value(), |growth| growth.count)
}

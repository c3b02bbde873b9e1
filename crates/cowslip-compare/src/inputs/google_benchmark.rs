//! `--benchmark_out` of Google Benchmark: each repetition of a benchmark is a run.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::collect::{Benchmarks, clipped, facts};
use super::{Benchmark, Run, WALL};
use crate::{Error, Result};

/// Numbers that say which one it is, or how it was measured.
const OTHER_NUMBERS: [&str; 7] = [
    "family_index",
    "per_family_instance_index",
    "repetitions",
    "repetition_index",
    "threads",
    "iterations",
    "time_unit",
];

const FACTS: [(&str, &str); 5] = [
    ("cpu.count", "/context/num_cpus"),
    ("cpu.mhz", "/context/mhz_per_cpu"),
    ("cpu.scaling", "/context/cpu_scaling_enabled"),
    ("host", "/context/host_name"),
    ("build", "/context/library_build_type"),
];

/// True for the file of a program.
pub(super) fn is_report(whole: &Value) -> bool {
    whole.get("context").is_some() && whole.get("benchmarks").is_some()
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let mut facts = facts(whole, &FACTS);
    // The clock of one processor differs by a little from run to run.
    if let Some(mhz) = facts.get_mut("cpu.mhz")
        && let Ok(value) = mhz.parse::<f64>()
    {
        *mhz = format!("{:.0}", (value / 100.0).round() * 100.0);
    }
    let facts = Arc::new(facts);
    let entries = whole.get("benchmarks").and_then(Value::as_array);
    let entries = entries.into_iter().flatten().filter_map(Value::as_object);
    let is_aggregate =
        |entry: &Map<String, Value>| entry.get("run_type") == Some(&"aggregate".into());
    let has_failed = |entry: &Map<String, Value>| {
        ["error_occurred", "skipped"].iter().any(|field| entry.get(*field) == Some(&true.into()))
    };
    let mut all = Benchmarks::default();
    for entry in entries.filter(|entry| !is_aggregate(entry) && !has_failed(entry)) {
        let Some(name) = entry.get("run_name").or(entry.get("name")).and_then(Value::as_str) else {
            return Err(Error::corrupt("a benchmark of Google Benchmark without a name"));
        };
        all.add(name, file, [Run { facts: Arc::clone(&facts), ..run(entry)? }]);
    }
    let all = all.into_vec();
    match all.is_empty() {
        true => Err(Error::corrupt(
            "it has no repetition of a benchmark, only aggregates at most; leave out \
             --benchmark_report_aggregates_only",
        )),
        false => Ok(all),
    }
}

fn run(entry: &Map<String, Value>) -> Result<Run> {
    let unit = match entry.get("time_unit").and_then(Value::as_str) {
        Some("s") => 1.0,
        Some("ms") => 1e-3,
        Some("us") => 1e-6,
        Some("ns") | None => 1e-9,
        Some(other) => {
            let other = clipped(other);
            return Err(Error::corrupt(format!("the time unit {other} is not known")));
        }
    };
    let numbers = entry.iter().filter(|(field, _)| !OTHER_NUMBERS.contains(&field.as_str()));
    let numbers = numbers.filter_map(|(field, value)| Some((field.as_str(), value.as_f64()?)));
    let mut run = Run::default();
    for (field, value) in numbers {
        let (metric, value) = match field {
            "real_time" => (WALL, value * unit),
            "cpu_time" => ("cpu_seconds", value * unit),
            _ => (field, value),
        };
        run.add_value(metric, Some(value));
    }
    for (field, _) in entry.iter().filter(|(_, value)| value.is_null()) {
        run.miss(field);
    }
    Ok(run)
}

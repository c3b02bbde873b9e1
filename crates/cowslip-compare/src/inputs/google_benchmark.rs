//! `--benchmark_out` of Google Benchmark: each repetition of a benchmark is a run.

use serde_json::{Map, Value};

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

pub(super) fn parse(whole: &Value, name: &str) -> Result<Vec<Benchmark>> {
    let entries = whole.get("benchmarks").and_then(Value::as_array);
    let entries = entries.into_iter().flatten().filter_map(Value::as_object);
    let is_aggregate =
        |entry: &Map<String, Value>| entry.get("run_type") == Some(&"aggregate".into());
    let has_failed = |entry: &Map<String, Value>| {
        ["error_occurred", "skipped"].iter().any(|field| entry.get(*field) == Some(&true.into()))
    };
    let mut all: Vec<Benchmark> = Vec::new();
    for entry in entries.filter(|entry| !is_aggregate(entry) && !has_failed(entry)) {
        let Some(called) = entry.get("run_name").or(entry.get("name")).and_then(Value::as_str)
        else {
            return Err(Error::corrupt("a benchmark of Google Benchmark without a name"));
        };
        let index =
            all.iter().position(|benchmark| benchmark.name == called).unwrap_or_else(|| {
                all.push(Benchmark { name: called.to_owned(), runs: Vec::new() });
                all.len() - 1
            });
        let runs = &mut all[index].runs;
        runs.push(run(entry, &format!("{name}#{}", runs.len() + 1))?);
    }
    match all.is_empty() {
        true => Err(Error::corrupt(
            "it has no repetition of a benchmark, only aggregates at most; leave out \
             --benchmark_report_aggregates_only",
        )),
        false => Ok(all),
    }
}

fn run(entry: &Map<String, Value>, name: &str) -> Result<Run> {
    let unit = match entry.get("time_unit").and_then(Value::as_str) {
        Some("s") => 1.0,
        Some("ms") => 1e-3,
        Some("us") => 1e-6,
        Some("ns") | None => 1e-9,
        Some(other) => return Err(Error::corrupt(format!("the time unit {other} is not known"))),
    };
    let numbers = entry.iter().filter(|(field, _)| !OTHER_NUMBERS.contains(&field.as_str()));
    let numbers = numbers.filter_map(|(field, value)| Some((field.as_str(), value.as_f64()?)));
    Ok(numbers.fold(Run::new(name), |run, (field, value)| match field {
        "real_time" => run.with(WALL, value * unit),
        "cpu_time" => run.with("cpu_seconds", value * unit),
        _ => run.with(field, value),
    }))
}

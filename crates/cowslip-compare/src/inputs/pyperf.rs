//! JSON of pyperf: each value of each process is a run; warm-ups and calibrations are none.

use std::sync::Arc;

use serde_json::Value;

use super::collect::{Benchmarks, facts};
use super::{Benchmark, Run, WALL};
use crate::{Error, Result};

const FACTS: [(&str, &str); 5] = [
    ("cpu.model", "/cpu_model_name"),
    ("cpu.count", "/cpu_count"),
    ("host", "/hostname"),
    ("python", "/python_version"),
    ("platform", "/platform"),
];

/// True for a suite of benchmarks.
pub(super) fn is_suite(whole: &Value) -> bool {
    let benchmarks = whole.get("benchmarks").and_then(Value::as_array);
    let first = benchmarks.and_then(|benchmarks| benchmarks.first());
    first.is_some_and(|benchmark| benchmark.get("runs").is_some_and(Value::is_array))
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let common = whole.get("metadata").unwrap_or(&Value::Null);
    let common_facts = facts(common, &FACTS);
    let mut all = Benchmarks::default();
    for benchmark in whole.get("benchmarks").and_then(Value::as_array).into_iter().flatten() {
        let own = benchmark.get("metadata").unwrap_or(&Value::Null);
        let text = |field: &str| own.get(field).or(common.get(field)).and_then(Value::as_str);
        let mut facts_of_both = common_facts.clone();
        facts_of_both.extend(facts(own, &FACTS));
        let facts = Arc::new(facts_of_both);
        let metric = match text("unit") {
            Some("second") | None => WALL,
            Some("byte") => "bytes",
            Some(unit) => unit,
        };
        let Some(processes) = benchmark.get("runs").and_then(Value::as_array) else {
            return Err(Error::corrupt("a benchmark of pyperf without `runs`"));
        };
        let values = processes.iter().filter_map(|process| process.get("values")?.as_array());
        let runs = values.flatten().map(|value| {
            let mut run = Run { facts: Arc::clone(&facts), ..Run::default() };
            run.add_value(metric, value.as_f64());
            run
        });
        all.add(text("name").unwrap_or_default(), file, runs);
    }
    let all = all.into_vec();
    match all.is_empty() {
        true => Err(Error::corrupt("a file of pyperf without `values`, only warm-ups at most")),
        false => Ok(all),
    }
}

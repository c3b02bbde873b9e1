//! `pytest --benchmark-json`: each round of a test is a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::collect::{facts, numbered};
use super::{Benchmark, Run, WALL};
use crate::{Error, Result};

const FACTS: [(&str, &str); 5] = [
    ("cpu.model", "/machine_info/cpu/brand_raw"),
    ("cpu.count", "/machine_info/cpu/count"),
    ("kernel", "/machine_info/release"),
    ("python", "/machine_info/python_version"),
    ("commit", "/commit_info/id"),
];
const NO_ROUNDS: &str = "pytest-benchmark saved no values of rounds, and a test counts by its \
     median: add --benchmark-save-data";

/// True for a report.
pub(super) fn is_report(whole: &Value) -> bool {
    whole.get("machine_info").is_some()
}

pub(super) fn parse(whole: &Value, name: &str) -> Result<Vec<Benchmark>> {
    let facts = Arc::new(facts_of(whole));
    let benchmarks = whole.get("benchmarks").and_then(Value::as_array);
    benchmarks.into_iter().flatten().map(|entry| benchmark(entry, name, &facts)).collect()
}

fn benchmark(
    entry: &Value,
    name: &str,
    facts: &Arc<BTreeMap<String, String>>,
) -> Result<Benchmark> {
    let test = entry.get("fullname").or(entry.get("name")).and_then(Value::as_str);
    let (Some(test), Some(stats)) = (test, entry.get("stats")) else {
        return Err(Error::corrupt("a benchmark of pytest without a name and `stats`"));
    };
    // Files of --benchmark-save and --benchmark-autosave have no values of rounds unless they are asked for.
    let data = stats.get("data").and_then(Value::as_array);
    let times: Vec<f64> = match data {
        Some(data) => data.iter().filter_map(Value::as_f64).collect(),
        None => stats.get("median").and_then(Value::as_f64).into_iter().collect(),
    };
    let advice = data.is_none().then_some(NO_ROUNDS);
    let run = |(index, seconds): (usize, f64)| {
        let run = Run::new(&numbered(name, index)).with(WALL, seconds);
        Run { facts: Arc::clone(facts), advice, ..run }
    };
    let runs = times.into_iter().enumerate().map(run).collect();
    Ok(Benchmark { name: test.to_owned(), runs })
}

fn facts_of(whole: &Value) -> BTreeMap<String, String> {
    let mut facts = facts(whole, &FACTS);
    let unknown = ["unversioned", "unknown"];
    if let Some(commit) = facts.remove("commit").filter(|id| !unknown.contains(&id.as_str())) {
        let is_dirty = whole.pointer("/commit_info/dirty").and_then(Value::as_bool);
        let suffix = if is_dirty == Some(true) { "-dirty" } else { "" };
        facts.insert("commit".to_owned(), commit + suffix);
    }
    facts
}

//! `pytest --benchmark-json`: each round of a test is a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::{Benchmark, Run, WALL};
use crate::{Error, Result};

pub(super) fn parse(whole: &Value, name: &str) -> Result<Vec<Benchmark>> {
    let facts = Arc::new(facts(whole));
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
    // Files of --benchmark-save have no values of rounds unless they are asked for.
    let times: Vec<f64> = match stats.get("data").and_then(Value::as_array) {
        Some(data) => data.iter().filter_map(Value::as_f64).collect(),
        None => stats.get("median").and_then(Value::as_f64).into_iter().collect(),
    };
    let run = |(index, seconds): (usize, f64)| {
        let run = Run::new(&format!("{name}#{}", index + 1)).with(WALL, seconds);
        Run { facts: Arc::clone(facts), ..run }
    };
    let runs = times.into_iter().enumerate().map(run).collect();
    Ok(Benchmark { name: test.to_owned(), runs })
}

fn facts(whole: &Value) -> BTreeMap<String, String> {
    let text = |path: &str| match whole.pointer(path)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let mut facts: BTreeMap<String, String> = [
        ("cpu.model", "/machine_info/cpu/brand_raw"),
        ("cpu.count", "/machine_info/cpu/count"),
        ("kernel", "/machine_info/release"),
        ("python", "/machine_info/python_version"),
    ]
    .into_iter()
    .filter_map(|(fact, path)| Some((fact.to_owned(), text(path)?)))
    .collect();
    if let Some(commit) = text("/commit_info/id").filter(|commit| commit != "unversioned") {
        let is_dirty = whole.pointer("/commit_info/dirty").and_then(Value::as_bool);
        let suffix = if is_dirty == Some(true) { "-dirty" } else { "" };
        facts.insert("commit".to_owned(), commit + suffix);
    }
    facts
}

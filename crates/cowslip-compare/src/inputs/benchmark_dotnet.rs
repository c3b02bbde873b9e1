//! BenchmarkDotNet's full JSON: each of its original values is a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::collect::{Benchmarks, facts};
use super::{Benchmark, Metric, Run, WALL};
use crate::{Error, Result};

const FACTS: [(&str, &str); 5] = [
    ("cpu.model", "/HostEnvironmentInfo/ProcessorName"),
    ("cpu.count", "/HostEnvironmentInfo/LogicalCoreCount"),
    ("runtime", "/HostEnvironmentInfo/RuntimeVersion"),
    ("os", "/HostEnvironmentInfo/OsVersion"),
    ("build", "/HostEnvironmentInfo/Configuration"),
];
const ALLOCATED: &str = "allocated_bytes_per_operation";

/// True for a report.
pub(super) fn is_report(whole: &Value) -> bool {
    whole.get("HostEnvironmentInfo").is_some() && whole.get("Benchmarks").is_some()
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let facts = Arc::new(facts(whole, &FACTS));
    let benchmarks = whole.get("Benchmarks").and_then(Value::as_array);
    let benchmarks = benchmarks.map(Vec::as_slice).unwrap_or_default();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for benchmark in benchmarks {
        *times.entry(full_name(benchmark)?).or_default() += 1;
    }
    let mut all = Benchmarks::default();
    for benchmark in benchmarks {
        // Jobs of the same method have the same full name.
        let job = benchmark.get("DisplayInfo").and_then(Value::as_str);
        let mut name = full_name(benchmark)?;
        if times[&name] > 1 {
            name = job.map_or(name, str::to_owned);
        }
        let allocated =
            benchmark.pointer("/Memory/BytesAllocatedPerOperation").and_then(Value::as_f64);
        let values = benchmark.pointer("/Statistics/OriginalValues").and_then(Value::as_array);
        let runs = values.into_iter().flatten().map(|value| {
            let mut run = Run { facts: Arc::clone(&facts), ..Run::default() };
            run.add_value(WALL, value.as_f64().map(|ns| ns / 1e9));
            run.add(ALLOCATED, allocated.and_then(|bytes| Metric::levels(vec![bytes])));
            run
        });
        all.add(&name, file, runs);
    }
    let all = all.into_vec();
    match all.is_empty() {
        true => Err(Error::corrupt(
            "no benchmark has `OriginalValues`; take BenchmarkDotNet's JsonExporter.Full",
        )),
        false => Ok(all),
    }
}

fn full_name(benchmark: &Value) -> Result<String> {
    let text = |field: &str| benchmark.get(field).and_then(Value::as_str);
    match (text("FullName"), text("MethodTitle"), text("Parameters")) {
        (Some(name), ..) => Ok(name.to_owned()),
        (None, Some(title), Some(parameters)) if !parameters.is_empty() => {
            Ok(format!("{title}({parameters})"))
        }
        (None, Some(title), _) => Ok(title.to_owned()),
        _ => Err(Error::corrupt("a benchmark of BenchmarkDotNet without a name")),
    }
}

//! Results of asv (`results/MACHINE/COMMIT-ENV.json`): each sample of a benchmark and its parameters is a run.

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;

use serde_json::Value;

use super::collect::{clipped, facts, numbered};
use super::{Benchmark, Metric, Run, WALL};
use crate::{Error, Result};

const FACTS: [(&str, &str); 7] = [
    ("cpu.model", "/params/cpu"),
    ("cpu.count", "/params/num_cpu"),
    ("memory", "/params/ram"),
    ("os", "/params/os"),
    ("host", "/params/machine"),
    ("python", "/python"),
    ("commit", "/commit_hash"),
];
const NO_SAMPLES: &str =
    "asv saved no samples, and a benchmark counts by its median: run it with --record-samples";
/// More parameters than a benchmark has.
const MOST_PARAMETERS: usize = 16;

/// True for the results of a commit. Hyperfine's `results` are a list.
pub(super) fn is_results(whole: &Value) -> bool {
    let has = |field: &str| whole.get(field).is_some();
    whole.get("results").is_some_and(Value::is_object)
        && (has("result_columns") || has("commit_hash"))
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let columns = whole.get("result_columns").and_then(Value::as_array);
    let columns: Vec<&str> = columns.into_iter().flatten().filter_map(Value::as_str).collect();
    let facts = Arc::new(facts(whole, &FACTS));
    let mut all = Vec::new();
    for (name, entry) in whole.get("results").and_then(Value::as_object).into_iter().flatten() {
        let column = |column: &str| match entry {
            Value::Object(fields) => fields.get(column),
            Value::Array(cells) => cells.get(columns.iter().position(|name| *name == column)?),
            _ => Some(entry).filter(|_| column == "result"),
        };
        let parameters = column("params").and_then(Value::as_array);
        let parameters: Vec<&Vec<Value>> =
            parameters.into_iter().flatten().filter_map(Value::as_array).collect();
        if parameters.len() > MOST_PARAMETERS {
            let many = parameters.len();
            return Err(Error::corrupt(format!("{} has {many} parameters", clipped(name))));
        }
        let metric = metric(name);
        let samples = column("samples").map(list).unwrap_or_default();
        for (index, result) in column("result").map(list).unwrap_or_default().iter().enumerate() {
            let samples = samples.get(index).filter(|samples| samples.is_array());
            let mut runs = runs(metric, list(samples.unwrap_or(result)), file, &facts);
            if let Some(first) = runs.first_mut() {
                first.advice = samples.is_none().then_some(NO_SAMPLES);
                all.push(Benchmark { name: with_parameters(name, &parameters, index), runs });
            }
        }
    }
    match all.is_empty() {
        true => Err(Error::corrupt("a file of asv's results without a result that is a number")),
        false => Ok(all),
    }
}

/// The items of a list, or a value that stands for a list of one.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(slice::from_ref(value), Vec::as_slice)
}

/// The metric by the beginning of the function's name, which asv takes for its kind.
fn metric(name: &str) -> &'static str {
    let function = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    match () {
        () if function.starts_with("time") => WALL,
        () if function.starts_with("mem") => "bytes",
        () if function.starts_with("peakmem") => "peak_bytes",
        () => "value",
    }
}

fn runs(
    metric: &str,
    values: &[Value],
    file: &str,
    facts: &Arc<BTreeMap<String, String>>,
) -> Vec<Run> {
    let levels = values.iter().filter_map(|value| Metric::levels(vec![value.as_f64()?]));
    let run = |(index, level)| {
        let mut run = Run { facts: Arc::clone(facts), ..Run::new(&numbered(file, index)) };
        run.add(metric, Some(level));
        run
    };
    levels.enumerate().map(run).collect()
}

/// The name with the parameters of a result, of which the last one changes first.
fn with_parameters(name: &str, parameters: &[&Vec<Value>], index: usize) -> String {
    let mut rest = index;
    let mut chosen = Vec::new();
    for values in parameters.iter().rev().filter(|values| !values.is_empty()) {
        let value = &values[rest % values.len()];
        rest /= values.len();
        chosen.push(
            value.as_str().map_or_else(|| value.to_string(), |text| clipped(text).to_owned()),
        );
    }
    chosen.reverse();
    let name = clipped(name);
    match chosen.is_empty() {
        true => name.to_owned(),
        false => clipped(&format!("{name}({})", chosen.join(", "))).to_owned(),
    }
}

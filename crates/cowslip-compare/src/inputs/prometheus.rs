//! The answer of Prometheus' `query_range`: one run, a metric a series.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::collect::{clipped, unnamed};
use super::units::number;
use super::{Benchmark, Metric, Run};
use crate::{Error, Result};

/// The label with the name of a metric.
const NAME: &str = "__name__";
/// Ends of the names of counters.
const COUNTERS: [&str; 4] = ["_total", "_count", "_sum", "_bucket"];

/// True for an answer of the API.
pub(super) fn is_response(whole: &Value) -> bool {
    whole.get("status").is_some()
        && (whole.get("data").is_some() || whole.get("errorType").is_some())
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    if let Some(error) = whole.get("error").and_then(Value::as_str) {
        return Err(Error::corrupt(format!("Prometheus answered: {}", clipped(error))));
    }
    let kind = whole.pointer("/data/resultType").and_then(Value::as_str).unwrap_or("missing");
    if kind != "matrix" {
        return Err(Error::corrupt(format!(
            "the resultType of Prometheus is {}, which has no values over time; ask for query_range, which answers \
             with a matrix",
            clipped(kind)
        )));
    }
    let series = whole.pointer("/data/result").and_then(Value::as_array);
    let series: Vec<(&Map<String, Value>, &Vec<Value>)> = series
        .into_iter()
        .flatten()
        .map(|series| Some((series.get("metric")?.as_object()?, series.get("values")?.as_array()?)))
        .collect::<Option<_>>()
        .ok_or_else(|| Error::corrupt("a series of Prometheus without `metric` and `values`"))?;
    let common = common_labels(&series);
    let mut run = Run::new(file);
    for (labels, values) in series {
        let called = labels.get(NAME).and_then(Value::as_str).unwrap_or_default();
        let mut reads = Vec::with_capacity(values.len());
        for value in values {
            match read(value)? {
                Some(read) => reads.push(read),
                None => run.miss(called),
            }
        }
        reads.sort_by(|one, other| one.0.total_cmp(&other.0));
        let metric = match COUNTERS.iter().any(|end| called.ends_with(end)) {
            true => Metric::counter(&reads),
            false => Metric::levels(reads.into_iter().map(|(_, value)| value).collect()),
        };
        run.add_or_count(&name(called, labels, &common), metric);
    }
    Ok(unnamed(vec![run]))
}

/// A time and a value; `None` for a value that is not finite.
fn read(value: &Value) -> Result<Option<(f64, f64)>> {
    let both = || Some((value.get(0)?.as_f64()?, value.get(1)?.as_str()?));
    let Some((time, text)) = both() else {
        return Err(Error::corrupt("a value of Prometheus that is no pair of a time and a text"));
    };
    match (number(text), text.trim_start_matches(['+', '-'])) {
        (Some(value), _) => Ok(Some((time, value))),
        (None, "NaN" | "Inf") => Ok(None),
        (None, _) => Err(Error::corrupt(format!("{} is no value of Prometheus", clipped(text)))),
    }
}

/// The labels that are the same in all series.
fn common_labels<'a>(
    series: &[(&'a Map<String, Value>, &Vec<Value>)],
) -> BTreeMap<&'a str, &'a Value> {
    let mut all = series.iter().map(|(labels, _)| *labels);
    let first = all.next().into_iter().flatten();
    let mut common: BTreeMap<&str, &Value> =
        first.map(|(label, value)| (label.as_str(), value)).collect();
    for labels in all {
        common.retain(|label, value| labels.get(*label) == Some(*value));
    }
    common
}

/// The name of a series, such as `node_cpu_seconds_total{cpu="0",mode="idle"}`.
fn name(called: &str, labels: &Map<String, Value>, common: &BTreeMap<&str, &Value>) -> String {
    let differs = |label: &&String| *label != NAME && !common.contains_key(label.as_str());
    let labels: Vec<String> =
        labels.keys().filter(differs).map(|label| format!("{label}={}", labels[label])).collect();
    match (called, labels.is_empty()) {
        ("", true) => "value".to_owned(),
        (_, true) => called.to_owned(),
        _ => format!("{called}{{{}}}", labels.join(",")),
    }
}

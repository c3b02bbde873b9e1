//! k6: the points of `--out json`, which are one run, and the object of `--summary-export`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::collect::unnamed;
use super::json::from_json;
use super::time::{counted, rfc3339};
use super::{Benchmark, Metric, Run};
use crate::{Error, Result};

/// A definition of a metric, or a point of one.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    metric: String,
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    time: String,
    value: Option<f64>,
}

/// True for a definition or a point.
pub(super) fn is_line(line: &Value) -> bool {
    let kind = line.get("type").and_then(Value::as_str);
    matches!(kind, Some("Metric" | "Point")) && line.get("metric").is_some()
}

pub(super) fn points(text: &str, file: &str) -> Result<Vec<Benchmark>> {
    let mut run = Run::new(file);
    let mut kinds: BTreeMap<String, String> = BTreeMap::new();
    let mut points: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let corrupt = |what: String| Error::corrupt(format!("line {}: {what}", index + 1));
        let line: Line = from_json(line).map_err(|error| corrupt(error.to_string()))?;
        if line.kind == "Metric" {
            kinds.insert(line.metric, line.data.kind);
            continue;
        }
        let Some(time) = rfc3339(&line.data.time) else {
            return Err(corrupt("a point of k6 without a time".to_owned()));
        };
        match line.data.value {
            Some(value) => points.entry(line.metric).or_default().push((time, value)),
            None => run.miss(&line.metric),
        }
    }
    for (name, mut points) in points {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let metric = match kinds.get(&name).map(String::as_str) {
            Some("counter") => counted(&points),
            _ => Metric::levels(points.into_iter().map(|(_, value)| value).collect()),
        };
        run.add_or_count(&name, metric);
    }
    Ok(unnamed(vec![run]))
}

/// True for the summary of a test.
pub(super) fn is_summary(whole: &Value) -> bool {
    whole.get("root_group").is_some() && whole.get("metrics").is_some()
}

/// Reads the numbers of each metric, such as `http_req_duration.p(95)`; newer versions have them in `values`.
pub(super) fn summary(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let Some(metrics) = whole.get("metrics").and_then(Value::as_object) else {
        return Err(Error::corrupt("the `metrics` of k6's summary are no object"));
    };
    let mut run = Run::new(file);
    for (name, content) in metrics {
        let values = content.get("values").unwrap_or(content).as_object();
        for (field, value) in values.into_iter().flatten() {
            if value.is_number() || value.is_null() {
                run.add_value(&format!("{name}.{field}"), value.as_f64());
            }
        }
    }
    Ok(unnamed(vec![run]))
}

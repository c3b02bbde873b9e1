//! vegeta: the requests of `encode`, which are one run, and the object of `report -type=json`.

use serde::Deserialize;
use serde_json::Value;

use super::collect::unnamed;
use super::json::from_json;
use super::time::rfc3339;
use super::{Benchmark, Metric, Run};
use crate::{Error, Result};

/// Objects of a report, with the metrics that they become and the factor to their unit.
const OBJECTS: [(&str, &str, f64); 4] = [
    ("latencies", "latency_seconds", 1e-9),
    ("bytes_in", "bytes_in", 1.0),
    ("bytes_out", "bytes_out", 1.0),
    ("status_codes", "status_codes", 1.0),
];
/// Numbers of a report, in the same way.
const NUMBERS: [(&str, &str, f64); 6] = [
    // Chosen by its user, no time that something took.
    ("duration", "attack_seconds", 1e-9),
    ("wait", "wait_seconds", 1e-9),
    ("requests", "requests", 1.0),
    ("rate", "requests_per_second", 1.0),
    ("throughput", "throughput_per_second", 1.0),
    ("success", "success", 1.0),
];

#[derive(Deserialize)]
struct Request {
    code: u16,
    timestamp: String,
    /// Nanoseconds.
    latency: f64,
    #[serde(default)]
    bytes_in: f64,
    #[serde(default)]
    bytes_out: f64,
}

/// True for a request.
pub(super) fn is_line(line: &Value) -> bool {
    ["code", "timestamp", "latency"].iter().all(|field| line.get(field).is_some())
}

/// Reads the requests in the order of their starts. Codes from 200 to 399 are successes, as in vegeta's reports.
pub(super) fn requests(text: &str, file: &str) -> Result<Vec<Benchmark>> {
    let mut requests: Vec<(f64, Request)> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let corrupt = |what: String| Error::corrupt(format!("line {}: {what}", index + 1));
        let request: Request = from_json(line).map_err(|error| corrupt(error.to_string()))?;
        let Some(time) = rfc3339(&request.timestamp) else {
            return Err(corrupt("a request of vegeta without a time".to_owned()));
        };
        requests.push((time, request));
    }
    requests.sort_by(|one, other| one.0.total_cmp(&other.0));
    let levels = |value: fn(&Request) -> f64| {
        Metric::levels(requests.iter().map(|(_, request)| value(request)).collect())
    };
    let mut run = Run::new(file);
    run.add("latency_seconds", levels(|request| request.latency / 1e9));
    run.add("bytes_in", levels(|request| request.bytes_in));
    run.add("bytes_out", levels(|request| request.bytes_out));
    run.add("success", levels(|request| f64::from((200..400).contains(&request.code))));
    Ok(unnamed(vec![run]))
}

/// True for a report.
pub(super) fn is_report(whole: &Value) -> bool {
    ["latencies", "requests", "success"].iter().all(|field| whole.get(field).is_some())
}

pub(super) fn report(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    if !whole.get("latencies").is_some_and(Value::is_object) {
        return Err(Error::corrupt("the `latencies` of vegeta's report are no object"));
    }
    let level = |value: &Value, factor| Metric::levels(vec![value.as_f64()? * factor]);
    let mut run = Run::new(file);
    for (object, metric, factor) in OBJECTS {
        for (field, value) in whole.get(object).and_then(Value::as_object).into_iter().flatten() {
            run.add_or_count(&format!("{metric}.{field}"), level(value, factor));
        }
    }
    for (field, metric, factor) in NUMBERS {
        run.add(metric, whole.get(field).and_then(|value| level(value, factor)));
    }
    Ok(unnamed(vec![run]))
}

//! Bencher's metric format: an object of benchmarks, each an object of measures. A benchmark has one run.

use serde_json::{Map, Value};

use super::collect::{Benchmarks, clipped};
use super::{Benchmark, Run, WALL};
use crate::{Error, Result};

/// Bencher's measure of time, in nanoseconds.
const LATENCY: &str = "latency";

/// True for an object whose first benchmark has a measure with a value.
pub(super) fn is_metrics(whole: &Value) -> bool {
    let first = whole.as_object().and_then(|benchmarks| benchmarks.values().next());
    let measure = first.and_then(Value::as_object).and_then(|measures| measures.values().next());
    measure.is_some_and(|measure| measure.get("value").is_some_and(Value::is_number))
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let mut all = Benchmarks::default();
    for (name, measures) in whole.as_object().into_iter().flatten() {
        let Some(run) = measures.as_object().and_then(run) else {
            let name = clipped(name);
            return Err(Error::corrupt(format!("{name} has a measure without a `value`")));
        };
        all.add(name, file, [run]);
    }
    Ok(all.into_vec())
}

fn run(measures: &Map<String, Value>) -> Option<Run> {
    let mut run = Run::default();
    for (measure, content) in measures {
        let value = content.get("value")?.as_f64();
        match measure.as_str() {
            LATENCY => run.add_value(WALL, value.map(|ns| ns / 1e9)),
            _ => run.add_value(measure, value),
        }
    }
    Some(run)
}

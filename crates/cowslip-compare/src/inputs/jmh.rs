//! JMH's `-rf json`: each iteration of each fork is a run.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::collect::{Benchmarks, facts};
use super::units::metric_of;
use super::{Benchmark, Run};
use crate::{Error, Result};

const FACTS: [(&str, &str); 6] = [
    ("jvm", "/jvm"),
    ("jdk.version", "/jdkVersion"),
    ("vm.name", "/vmName"),
    ("vm.version", "/vmVersion"),
    ("mode", "/mode"),
    ("threads", "/threads"),
];

/// True for a list of results.
pub(super) fn is_results(whole: &Value) -> bool {
    let first = whole.as_array().and_then(|results| results.first());
    first.is_some_and(|result| result.get("primaryMetric").is_some())
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let results = whole.as_array().map(Vec::as_slice).unwrap_or_default();
    let mode = |result: &Value| Some(result.get("mode")?.as_str()?.to_owned());
    let has_modes = results.iter().map(mode).collect::<BTreeSet<_>>().len() > 1;
    let mut all = Benchmarks::default();
    for result in results {
        let benchmark = result.get("benchmark").and_then(Value::as_str);
        let (Some(benchmark), Some(primary)) = (benchmark, result.get("primaryMetric")) else {
            return Err(Error::corrupt("a result of JMH without `benchmark` and `primaryMetric`"));
        };
        let mut name = benchmark.to_owned() + &parameters(result);
        if has_modes {
            name += &format!(" {}", mode(result).unwrap_or_default());
        }
        let facts = Arc::new(facts(result, &FACTS));
        let runs = runs(primary, result.get("secondaryMetrics"))?;
        let with_facts = |run| Run { facts: Arc::clone(&facts), ..run };
        all.add(&name, file, runs.into_iter().map(with_facts));
    }
    Ok(all.into_vec())
}

/// The parameters, such as `(size=64, kind=a)`; nothing without any.
fn parameters(result: &Value) -> String {
    let parameters = result.get("params").and_then(Value::as_object).into_iter().flatten();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let all: Vec<String> =
        parameters.map(|(name, value)| format!("{name}={}", text(value))).collect();
    if all.is_empty() { String::new() } else { format!("({})", all.join(", ")) }
}

fn runs(primary: &Value, secondary: Option<&Value>) -> Result<Vec<Run>> {
    let unit = primary.get("scoreUnit").and_then(Value::as_str);
    let (Some(unit), Some(scores)) = (unit, scores(primary)) else {
        return Err(Error::corrupt("a metric of JMH without `scoreUnit` and `rawData`"));
    };
    let (metric, factor) = metric_of(unit).unwrap_or((unit, 1.0));
    let mut runs: Vec<Run> = Vec::with_capacity(scores.len());
    for score in scores {
        let mut run = Run::default();
        run.add_value(metric, score.map(|score| score * factor));
        runs.push(run);
    }
    for (name, content) in secondary.and_then(Value::as_object).into_iter().flatten() {
        let unit = content.get("scoreUnit").and_then(Value::as_str).unwrap_or_default();
        let name = match unit {
            "" | "counts" => name.trim_start_matches('·').to_owned(),
            _ => format!("{}_{unit}", name.trim_start_matches('·')),
        };
        for (run, score) in runs.iter_mut().zip(self::scores(content).unwrap_or_default()) {
            run.add_value(&name, score);
        }
    }
    Ok(runs)
}

/// The scores of all iterations of all forks; a histogram of an iteration counts by its mean.
fn scores(metric: &Value) -> Option<Vec<Option<f64>>> {
    let forks = metric.get("rawData").or(metric.get("rawDataHistogram"))?.as_array()?;
    let iterations = forks.iter().filter_map(Value::as_array).flatten();
    let score = |iteration: &Value| match iteration {
        Value::Array(histogram) => mean(histogram),
        _ => iteration.as_f64(),
    };
    Some(iterations.map(score).collect())
}

/// The mean of pairs of a value and its count.
fn mean(histogram: &[Value]) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for pair in histogram {
        let (value, times) = (pair.get(0)?.as_f64()?, pair.get(1)?.as_f64()?);
        sum += value * times;
        count += times;
    }
    (count > 0.0).then(|| sum / count)
}

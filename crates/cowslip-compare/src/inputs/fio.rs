//! `fio --output-format=json`: a job is a benchmark; several jobs of one name are its runs.

use std::sync::Arc;

use serde_json::Value;

use super::collect::{Benchmarks, facts};
use super::units::percentile;
use super::{Benchmark, Metric, Run};
use crate::{Error, Result};

const FACTS: [(&str, &str); 1] = [("fio", "/fio version")];
/// Directions with a result of their own.
const DIRECTIONS: [&str; 3] = ["read", "write", "trim"];
/// Numbers of a direction.
const MEASURES: [&str; 6] =
    ["iops", "bw_bytes", "slat_ns/mean", "clat_ns/mean", "clat_ns/stddev", "lat_ns/mean"];
/// Numbers of a job.
const OF_JOB: [&str; 5] = ["usr_cpu", "sys_cpu", "ctx", "majf", "minf"];

/// True for a report of jobs.
pub(super) fn is_report(whole: &Value) -> bool {
    whole.get("fio version").is_some() && whole.get("jobs").is_some()
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let facts = Arc::new(facts(whole, &FACTS));
    let mut all = Benchmarks::default();
    let mut failures = 0;
    for job in whole.get("jobs").and_then(Value::as_array).into_iter().flatten() {
        let Some(name) = job.get("jobname").and_then(Value::as_str) else {
            return Err(Error::corrupt("a job of fio without `jobname`"));
        };
        if job.get("error").and_then(Value::as_i64).is_some_and(|error| error != 0) {
            failures += 1;
            continue;
        }
        all.add(name, file, [Run { facts: Arc::clone(&facts), ..run(job) }]);
    }
    let mut all = all.into_vec();
    match all.first_mut().and_then(|benchmark| benchmark.runs.first_mut()) {
        Some(first) => first.failed_runs = failures,
        None => {
            return Err(Error::corrupt(format!(
                "fio has no job without an error, {failures} with one"
            )));
        }
    }
    Ok(all)
}

fn run(job: &Value) -> Run {
    let mut run = Run::default();
    let level = |value: &Value| Metric::levels(vec![value.as_f64()?]);
    for field in OF_JOB {
        run.add(field, job.get(field).and_then(level));
    }
    let used = |direction: &Value| direction.get("total_ios").and_then(Value::as_f64) > Some(0.0);
    for direction in DIRECTIONS {
        let Some(content) = job.get(direction).filter(|content| used(content)) else { continue };
        for measure in MEASURES {
            let name = format!("{direction}.{}", measure.replace('/', "."));
            run.add(&name, content.pointer(&format!("/{measure}")).and_then(level));
        }
        let percentiles = content.pointer("/clat_ns/percentile").and_then(Value::as_object);
        for (share, value) in percentiles.into_iter().flatten() {
            let name = format!("{direction}.clat_ns.p{}", percentile(share));
            run.add_or_count(&name, level(value));
        }
    }
    run
}

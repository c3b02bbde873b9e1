//! Criterion's files in `target/criterion`: each sample is a run, its time that of one iteration.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::collect::unnamed;
use super::json::from_json;
use super::{Benchmark, Run, WALL, read_text};
use crate::{Error, Result};

/// The folder of the newest results, below that of a benchmark.
const NEWEST: &str = "new";
const SAMPLE: &str = "sample.json";
/// `GROUP/FUNCTION/PARAMETER/new` below the folder of all.
const DEEPEST: usize = 5;

/// True for the content of `sample.json`.
pub(super) fn is_sample(whole: &Value) -> bool {
    whole.get("iters").is_some() && whole.get("times").is_some()
}

/// True for the content of `estimates.json`.
pub(super) fn is_estimates(whole: &Value) -> bool {
    whole.pointer("/mean/point_estimate").is_some()
}

pub(super) fn sample(whole: &Value, name: &str) -> Result<Vec<Benchmark>> {
    Ok(unnamed(sample_runs(whole, name)?))
}

fn sample_runs(whole: &Value, name: &str) -> Result<Vec<Run>> {
    let numbers = |field: &str| -> Option<Vec<f64>> {
        whole.get(field)?.as_array()?.iter().map(Value::as_f64).collect()
    };
    let both = numbers("iters").zip(numbers("times"));
    let Some((iterations, times)) = both.filter(|(iters, times)| iters.len() == times.len()) else {
        return Err(Error::corrupt("a sample of criterion without as many `iters` as `times`"));
    };
    let runs = iterations.iter().zip(times).enumerate().map(|(index, (iterations, ns))| {
        Run::new(&format!("{name}#{}", index + 1)).with(WALL, ns / iterations / 1e9)
    });
    Ok(runs.collect())
}

/// One run with criterion's own estimate, where there is no sample.
pub(super) fn estimates(whole: &Value, name: &str) -> Result<Vec<Benchmark>> {
    let estimate = |of: &str| whole.pointer(&format!("/{of}/point_estimate"))?.as_f64();
    let ns = estimate("slope").or(estimate("mean"));
    let run = ns.map(|ns| Run::new(name).with(WALL, ns / 1e9));
    Ok(unnamed(run.into_iter().collect()))
}

/// The newest results of all benchmarks in a folder of criterion's; none in any other folder.
pub(super) fn folder(path: &Path) -> Result<Vec<Benchmark>> {
    let mut all = Vec::new();
    collect(path, DEEPEST, &mut all)?;
    all.sort_by(|one: &Benchmark, other| one.name.cmp(&other.name));
    Ok(all)
}

fn collect(path: &Path, depth: usize, into: &mut Vec<Benchmark>) -> Result<()> {
    let newest = if path.ends_with(NEWEST) { path.to_owned() } else { path.join(NEWEST) };
    let file = newest.join(SAMPLE);
    if file.is_file() {
        let json = |file: &Path| -> Result<Value> {
            let text = read_text(file)?;
            from_json(&text).map_err(|error| Error::corrupt(error).on(file))
        };
        let said = json(&newest.join("benchmark.json")).ok();
        let said = said.as_ref().and_then(|benchmark| benchmark.get("full_id")?.as_str());
        let folder = path.file_name().unwrap_or_default().to_string_lossy();
        let name = said.unwrap_or(&folder).to_owned();
        let runs = sample_runs(&json(&file)?, SAMPLE).map_err(|error| error.on(&file))?;
        into.push(Benchmark { name, runs });
        return Ok(());
    }
    if depth > 0 {
        let failed = |error| Error::io("read the directory", path, &error);
        for entry in fs::read_dir(path).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() && !path.is_symlink() {
                collect(&path, depth - 1, into)?;
            }
        }
    }
    Ok(())
}

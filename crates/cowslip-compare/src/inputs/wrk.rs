//! Text of wrk: each report in it is a run.

use super::collect::{clipped, numbered, unnamed};
use super::units::{number, percentile};
use super::{Benchmark, Run};
use crate::{Error, Result};

/// The first word of a report.
const FIRST: &str = "Running ";
const REQUESTS: &str = "Requests/sec:";

/// True for a text with a report.
pub(super) fn is_report(text: &str) -> bool {
    let has = |beginning: &str| text.lines().any(|line| line.starts_with(beginning));
    has(FIRST) && has(REQUESTS)
}

pub(super) fn parse(text: &str, file: &str) -> Result<Vec<Benchmark>> {
    let mut runs: Vec<Run> = Vec::new();
    for line in text.lines() {
        if line.starts_with(FIRST) {
            runs.push(Run::new(&numbered(file, runs.len())));
        }
        if let Some(run) = runs.last_mut() {
            read(line, run)?;
        }
    }
    match runs.iter().all(|run| run.metrics.contains_key("requests_per_second")) {
        true => Ok(unnamed(runs)),
        false => Err(Error::corrupt("a report of wrk without `Requests/sec`: its end is missing")),
    }
}

fn read(line: &str, run: &mut Run) -> Result<()> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["Latency", mean, deviation, most, _] => {
            add(run, "latency_seconds.mean", mean)?;
            add(run, "latency_seconds.stddev", deviation)?;
            add(run, "latency_seconds.max", most)
        }
        [share, time] if line.starts_with(' ') && share.ends_with('%') => {
            let share = percentile(clipped(share).trim_end_matches('%'));
            add(run, &format!("latency_seconds.p{share}"), time)
        }
        [REQUESTS, rate] => add(run, "requests_per_second", rate),
        ["Transfer/sec:", rate] => add(run, "transfer_bytes_per_second", rate),
        ["Non-2xx", "or", "3xx", "responses:", count] => add(run, "failed_responses", count),
        [
            "Socket",
            "errors:",
            "connect",
            connect,
            "read",
            read,
            "write",
            write,
            "timeout",
            time,
        ] => {
            for (kind, count) in
                [("connect", connect), ("read", read), ("write", write), ("timeout", time)]
            {
                add(run, &format!("socket_errors.{kind}"), count.trim_end_matches(','))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn add(run: &mut Run, metric: &str, text: &str) -> Result<()> {
    let Some(value) = value(text) else {
        return Err(Error::corrupt(format!("{metric} of wrk is {}, no number", clipped(text))));
    };
    run.add_value(metric, Some(value));
    Ok(())
}

/// A number with one of wrk's units: times in seconds, sizes in bytes.
fn value(text: &str) -> Option<f64> {
    let place = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (value, unit) = text.split_at(place);
    let factor = match unit {
        "" | "s" | "B" => 1.0,
        "us" => 1e-6,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "KB" => 1024.0,
        "MB" => 1048576.0,
        "GB" => 1073741824.0,
        "TB" => 1099511627776.0,
        _ => return None,
    };
    Some(number(value)? * factor)
}

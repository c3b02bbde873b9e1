//! Reports in text, recognized by their first lines.

use std::sync::Arc;

use super::collect::unnamed;
use super::{Benchmark, Run, go_bench, iostat, perf_csv, pidstat, sar, sysstat_text, vmstat, wrk};
use crate::{Error, Result};

/// Reads a report; `None` for any other text.
pub(super) fn parse(text: &str, name: &str) -> Option<Result<Vec<Benchmark>>> {
    if let Some(separator) = perf_csv::separator(text) {
        return Some(perf_csv::parse(text, separator, name));
    }
    if vmstat::is_report(text) {
        return Some(vmstat::parse(text, name));
    }
    let first = text.lines().find(|line| !line.trim().is_empty())?;
    if let Some(facts) = sysstat_text::facts(first) {
        let run = sysstat(text, name).map(|run| Run { facts: Arc::new(facts), ..run });
        return Some(run.map(|run| unnamed(vec![run])));
    }
    if wrk::is_report(text) {
        return Some(wrk::parse(text, name));
    }
    go_bench::is_report(text).then(|| go_bench::parse(text, name))
}

/// Reads the tables of pidstat, of iostat, or of sar and mpstat.
fn sysstat(text: &str, name: &str) -> Result<Run> {
    for parse in [pidstat::parse, iostat::parse, sar::parse] {
        let run = parse(text, name)?;
        if !run.metrics.is_empty() {
            return Ok(run);
        }
    }
    Err(Error::corrupt(
        "a report of sysstat without rows of sar, mpstat, pidstat or iostat: no line with a time or a device is below a \
         head; give the tool an interval, such as `sar -A 1 10`",
    ))
}

//! Text of vmstat: one run, a metric a column.

use std::collections::BTreeMap;

use super::collect::unnamed;
use super::units::number;
use super::{Benchmark, Metric, Run};
use crate::{Error, Result};

/// The first columns of a report.
const FIRST: [&str; 4] = ["r", "b", "swpd", "free"];

/// True for a text that begins with the two lines above the numbers.
pub(super) fn is_report(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty()).take(2);
    let is_title = |line: &str| line.trim_start_matches('-').starts_with("procs");
    lines.next().is_some_and(is_title) && lines.next().is_some_and(is_header)
}

fn is_header(line: &str) -> bool {
    line.split_whitespace().take(FIRST.len()).eq(FIRST)
}

/// Leaves out the first row, which holds the means since the start of the machine.
pub(super) fn parse(text: &str, file: &str) -> Result<Vec<Benchmark>> {
    let mut header: Vec<&str> = Vec::new();
    let mut columns: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut rows = 0;
    for (index, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split_whitespace().collect();
        if is_header(line) {
            header = cells;
            continue;
        }
        if cells.first().and_then(|cell| number(cell)).is_none() {
            continue;
        }
        if cells.len() < header.len() {
            let (number, has, all) = (index + 1, cells.len(), header.len());
            return Err(Error::corrupt(format!(
                "line {number} of vmstat has {has} of {all} columns"
            )));
        }
        rows += 1;
        // The column of the time with -t is no number.
        for (name, cell) in header.iter().zip(&cells).filter(|_| rows > 1) {
            columns.entry(name).or_default().extend(number(cell));
        }
    }
    if rows < 2 {
        return Err(Error::corrupt(
            "vmstat's only row holds the means since the start of the machine; give it an interval, such as `vmstat 1`",
        ));
    }
    let mut run = Run::new(file);
    for (name, samples) in columns.into_iter().filter(|(_, samples)| !samples.is_empty()) {
        run.add_or_count(name, Metric::levels(samples));
    }
    Ok(unnamed(vec![run]))
}

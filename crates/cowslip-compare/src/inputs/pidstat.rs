//! Text of pidstat: one run, a metric a command and column, such as `redis-server.%CPU`.
//!
//! Processes of the same command are added up. A process that did nothing in an interval has no row in it, so a missing
//! rate is zero.

use std::collections::BTreeMap;

use super::{Metric, Run, sysstat_text};
use crate::{Error, Result};

/// Columns that tell which process it is, or how it is scheduled.
const IDENTIFIERS: [&str; 8] = ["UID", "USER", "PID", "TGID", "TID", "CPU", "prio", "policy"];
/// The bound of values, as zeros for missing rates take more memory than the file.
const MOST_VALUES: usize = 1 << 24;

/// True for the columns of a table of pidstat.
pub(super) fn is_header(columns: &[&str]) -> bool {
    let is_identifier = |first: &&str| ["UID", "USER", "PID"].contains(first);
    columns.first().is_some_and(is_identifier) && columns.last() == Some(&"Command")
}

pub(super) fn parse(text: &str, file: &str) -> Result<Run> {
    // The sums of each interval, by column and command.
    let mut metrics: BTreeMap<(String, String), BTreeMap<usize, f64>> = BTreeMap::new();
    let intervals = sysstat_text::rows(text, is_header, |row| {
        let Some((command, cells)) = row.cells.split_last() else { return Ok(()) };
        for (index, column) in row.columns.iter().enumerate().take(cells.len()) {
            if IDENTIFIERS.contains(column) {
                continue;
            }
            if let Some(value) = row.value(index)? {
                let sums =
                    metrics.entry(((*column).to_owned(), (*command).to_owned())).or_default();
                *sums.entry(row.interval).or_default() += value;
            }
        }
        Ok(())
    })?;
    if metrics.len().saturating_mul(intervals) > MOST_VALUES {
        return Err(Error::corrupt(format!(
            "pidstat's {intervals} intervals have {} commands and columns, which are too many; restrict it with -C \
             or -p",
            metrics.len()
        )));
    }
    let mut run = Run::new(file);
    for ((column, command), sums) in metrics {
        let is_rate = column.ends_with("/s") || column.starts_with('%') && column != "%MEM";
        let samples = match is_rate {
            true => (0..intervals).map(|at| sums.get(&at).copied().unwrap_or_default()).collect(),
            false => sums.into_values().collect(),
        };
        run.add_or_count(&format!("{command}.{column}"), Metric::levels(samples));
    }
    Ok(run)
}

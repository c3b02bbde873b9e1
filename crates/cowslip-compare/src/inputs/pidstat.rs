//! Text of pidstat: one run, a metric a command and column, such as `redis-server.%CPU`.
//!
//! Processes of the same command are added up. A process that did nothing in an interval has no row in it, so a missing
//! rate is zero.

use super::Run;
use super::sysstat_text::{Series, is_rate, rows, timed};
use crate::Result;

/// Columns that tell which process it is, or how it is scheduled.
const IDENTIFIERS: [&str; 8] = ["UID", "USER", "PID", "TGID", "TID", "CPU", "prio", "policy"];

/// True for the columns of a table of pidstat.
fn is_header(columns: &[&str]) -> bool {
    let is_identifier = |first: &&str| ["UID", "USER", "PID"].contains(first);
    columns.first().is_some_and(is_identifier) && columns.last() == Some(&"Command")
}

pub(super) fn parse(text: &str, file: &str) -> Result<Run> {
    let mut series = Series::default();
    let intervals = rows(text, timed, is_header, |row| {
        let Some((command, cells)) = row.cells.split_last() else { return Ok(()) };
        for (index, column) in row.columns.iter().enumerate().take(cells.len()) {
            if !IDENTIFIERS.contains(column) {
                let is_rate = is_rate(column) && *column != "%MEM";
                series.add(&format!("{command}.{column}"), &row, is_rate, row.value(index)?);
            }
        }
        Ok(())
    })?;
    series.into_run(file, &intervals, 0)
}

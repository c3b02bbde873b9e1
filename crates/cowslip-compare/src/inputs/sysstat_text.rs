//! Tables of sysstat's reports in text, such as those of pidstat and mpstat.

use std::collections::BTreeMap;

use super::collect::{beginning, clipped};
use super::units::number;
use crate::{Error, Result};

/// The longest name of a column or a command: both together make a name of a metric.
const LONGEST_WORD: usize = 100;

/// A row below the names of its columns.
pub(super) struct Row<'a> {
    /// The names, without the time.
    pub(super) columns: &'a [&'a str],
    /// The cells, as many as columns; the last one has the rest of the line. Long ones are cut.
    pub(super) cells: &'a [&'a str],
    /// The number of the interval.
    pub(super) interval: usize,
}

impl Row<'_> {
    /// The value of a cell; `None` for a dash.
    pub(super) fn value(&self, index: usize) -> Result<Option<f64>> {
        let cell = self.cells[index];
        match number(cell) {
            None if cell != "-" => {
                let (cell, column) = (clipped(cell), self.columns[index]);
                Err(Error::corrupt(format!("{cell} in the column {column} is no number")))
            }
            value => Ok(value),
        }
    }
}

/// The kernel, the host, the machine and its processors; `None` for other lines than the first of a report.
pub(super) fn facts(line: &str) -> Option<BTreeMap<String, String>> {
    let rest = line.trim_start().strip_prefix("Linux ")?.trim_end().strip_suffix(" CPU)")?;
    let (kernel, rest) = rest.split_once(" (")?;
    let (host, rest) = rest.split_once(')')?;
    let (rest, processors) = rest.rsplit_once('(')?;
    let machine = rest.split_whitespace().last()?.trim_matches('_');
    let facts =
        [("kernel", kernel), ("host", host), ("machine", machine), ("cpu.count", processors)];
    Some(facts.map(|(fact, value)| (fact.to_owned(), value.to_owned())).into())
}

/// Gives each row with a time to `each`; averages have none. Returns the number of intervals.
pub(super) fn rows(
    text: &str,
    is_header: impl Fn(&[&str]) -> bool,
    mut each: impl FnMut(Row<'_>) -> Result<()>,
) -> Result<usize> {
    let mut columns: Vec<&str> = Vec::new();
    let (mut time, mut intervals) = (None, 0);
    for (index, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.trim_start_matches('#').split_whitespace().collect();
        let Some((now, rest)) = timed(&words) else {
            columns.clear();
            continue;
        };
        if is_header(rest) {
            columns = rest.iter().map(|word| beginning(word, LONGEST_WORD)).collect();
        } else if !columns.is_empty() {
            if rest.len() < columns.len() {
                let (number, has, all) = (index + 1, rest.len(), columns.len());
                let line = clipped(line.trim());
                let message = format!("line {number} has {has} of {all} columns: {line}");
                return Err(Error::corrupt(message));
            }
            if time != Some(now) {
                time = Some(now);
                intervals += 1;
            }
            let (cells, last) = rest.split_at(columns.len() - 1);
            let last = last.join(" ");
            let cells = cells.iter().copied().chain([&*last]);
            let cells: Vec<&str> = cells.map(|cell| beginning(cell, LONGEST_WORD)).collect();
            each(Row { columns: &columns, cells: &cells, interval: intervals - 1 })?;
        }
    }
    Ok(intervals)
}

/// The time at the beginning of a line, and the words behind it. The header of `pidstat -h` has `Time` in its place.
fn timed<'a, 'b>(words: &'b [&'a str]) -> Option<((&'a str, &'a str), &'b [&'a str])> {
    let (first, rest) = words.split_first()?;
    let is_clock = first.len() >= 7 && first.split(':').count() == 3;
    let is_epoch = first.len() >= 9 && first.bytes().all(|byte| byte.is_ascii_digit());
    let starts_with_digit = first.starts_with(|first: char| first.is_ascii_digit());
    match rest.split_first() {
        Some((&half @ ("AM" | "PM"), rest)) if is_clock => Some(((first, half), rest)),
        _ if (is_clock && starts_with_digit) || is_epoch || *first == "Time" => {
            Some(((first, ""), rest))
        }
        _ => None,
    }
}

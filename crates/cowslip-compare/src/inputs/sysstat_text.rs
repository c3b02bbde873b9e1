//! Tables of sysstat's reports in text: those of sar, mpstat, pidstat and iostat.

use std::collections::{BTreeMap, HashMap};

use super::collect::{beginning, clipped};
use super::units::number;
use super::{Metric, Run};
use crate::{Error, Result};

/// The longest name of a column or a command: both together make a name of a metric.
const LONGEST_WORD: usize = 100;
/// The bound of values, as zeros for missing rates take more memory than the file.
const MOST_VALUES: usize = 1 << 24;
/// Columns in capitals that stand where a time zone may: they name what a row is about.
pub(super) const ITEMS: [&str; 16] = [
    "CPU",
    "NODE",
    "INTR",
    "DEV",
    "IFACE",
    "TTY",
    "FILESYSTEM",
    "MOUNTPOINT",
    "FCHOST",
    "FAN",
    "TEMP",
    "IN",
    "BAT",
    "UID",
    "USER",
    "PID",
];
/// Tables of things that are there, without measurements.
pub(super) const LISTS: [&str; 1] = ["BUS"];
/// The halves of a day on a clock of twelve hours.
const HALVES: [&str; 4] = ["AM", "PM", "A.M.", "P.M."];

/// The words of a line: its time, empty for none, and those behind it.
type Timed<'a, 'b> = Option<(&'a str, &'b [&'a str])>;

/// A row below the names of its columns.
pub(super) struct Row<'a> {
    /// The names, without the time.
    pub(super) columns: &'a [&'a str],
    /// The cells, as many as columns; the last one has the rest of the line. Long ones are cut.
    pub(super) cells: &'a [&'a str],
    /// The number of the table: another one for each head.
    pub(super) table: usize,
    /// The number of the interval in its table.
    pub(super) interval: usize,
}

impl Row<'_> {
    /// The value of a cell; `None` for a dash.
    pub(super) fn value(&self, index: usize) -> Result<Option<f64>> {
        let cell = self.cells[index];
        match number(cell) {
            None if cell != "-" => {
                let is_rounded = |unit: char| number(cell.trim_end_matches(unit)).is_some();
                let advice = match cell.chars().last().is_some_and(is_rounded) {
                    true => ": it is rounded for people; run the tool without -h and --human",
                    false => "",
                };
                let (cell, column) = (clipped(cell), self.columns[index]);
                Err(Error::corrupt(format!("{cell} in the column {column} is no number{advice}")))
            }
            value => Ok(value),
        }
    }
}

/// The values of metrics by interval.
#[derive(Default)]
pub(super) struct Series {
    all: BTreeMap<String, OneSeries>,
}

#[derive(Default)]
struct OneSeries {
    table: usize,
    /// True if a missing row means zero.
    is_rate: bool,
    sums: BTreeMap<usize, f64>,
}

impl Series {
    /// Adds a value to that of the same metric and interval. A missing one is zero for a rate.
    pub(super) fn add(&mut self, name: &str, row: &Row<'_>, is_rate: bool, value: Option<f64>) {
        let Some(value) = value else { return };
        if !self.all.contains_key(name) {
            let (table, sums) = (row.table, BTreeMap::new());
            self.all.insert(name.to_owned(), OneSeries { table, is_rate, sums });
        }
        if let Some(series) = self.all.get_mut(name) {
            *series.sums.entry(row.interval).or_default() += value;
        }
    }

    /// The run with these metrics; `intervals` has the number of them by table, of which the first `skipped` do not count.
    pub(super) fn into_run(self, file: &str, intervals: &[usize], skipped: usize) -> Result<Run> {
        let rates = self.all.values().filter(|series| series.is_rate);
        let values = rates.fold(0_usize, |all, series| all.saturating_add(intervals[series.table]));
        if values > MOST_VALUES {
            let (rows, all) = (intervals.iter().max().copied().unwrap_or_default(), self.all.len());
            return Err(Error::corrupt(format!(
                "{rows} intervals have {all} commands, devices and columns, which are too many; \
                 restrict it with -C or -p of pidstat, or the reports of sar"
            )));
        }
        let mut run = Run::new(file);
        for (name, OneSeries { table, is_rate, sums }) in self.all {
            let samples: Vec<f64> = match is_rate {
                true => (skipped..intervals[table])
                    .map(|at| sums.get(&at).copied().unwrap_or_default())
                    .collect(),
                false => sums.range(skipped..).map(|(_, value)| *value).collect(),
            };
            // A device of the skipped interval alone is none.
            if !samples.is_empty() {
                run.add_or_count(&name, Metric::levels(samples));
            }
        }
        Ok(run)
    }
}

/// True for a column of shares or of events a second.
pub(super) fn is_rate(column: &str) -> bool {
    column.ends_with("/s") || column.starts_with('%') || column == "tps"
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

/// Intervals of a table.
#[derive(Default)]
struct Intervals<'a> {
    count: usize,
    last: &'a str,
    /// True between a head and a row.
    is_open: bool,
}

/// Gives each row with a time to `each`; averages have none. Returns the number of intervals of each table.
///
/// `split` gives the time of a line: `None` ends a table. An interval is a time, or, without times, a head.
pub(super) fn rows(
    text: &str,
    split: for<'a, 'b> fn(&'b [&'a str]) -> Timed<'a, 'b>,
    is_header: impl Fn(&[&str]) -> bool,
    mut each: impl FnMut(Row<'_>) -> Result<()>,
) -> Result<Vec<usize>> {
    let mut columns: Vec<&str> = Vec::new();
    let mut places: HashMap<Vec<&str>, usize> = HashMap::new();
    let mut tables: Vec<Intervals<'_>> = Vec::new();
    let (mut table, mut zone) = (0, None);
    for (index, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.trim_start_matches('#').split_whitespace().collect();
        let Some((now, mut rest)) = split(&words) else {
            columns.clear();
            continue;
        };
        if let [first, others @ ..] = rest
            && (zone == Some(*first) || columns.is_empty() && is_zone(&words, first, others))
        {
            zone = Some(first);
            rest = others;
        }
        // Notes in the place of rows: a start of the machine, and a comment of a person.
        if rest.starts_with(&["LINUX", "RESTART"]) || rest.first() == Some(&"COM") {
            continue;
        }
        if is_header(rest) {
            columns = rest.iter().map(|word| beginning(word, LONGEST_WORD)).collect();
            table = *places.entry(columns.clone()).or_insert_with(|| {
                tables.push(Intervals::default());
                tables.len() - 1
            });
            let intervals = &mut tables[table];
            intervals.count += usize::from(intervals.is_open);
            intervals.is_open = true;
        } else if !columns.is_empty() {
            if rest.len() < columns.len() {
                let (number, has, all) = (index + 1, rest.len(), columns.len());
                let line = clipped(line.trim());
                let message = format!("line {number} has {has} of {all} columns: {line}");
                return Err(Error::corrupt(message));
            }
            let intervals = &mut tables[table];
            if intervals.last != now || intervals.is_open && now.is_empty() || intervals.count == 0
            {
                intervals.count += 1;
            }
            (intervals.last, intervals.is_open) = (now, false);
            let interval = intervals.count - 1;
            let (cells, last) = rest.split_at(columns.len() - 1);
            let last = last.join(" ");
            let cells = cells.iter().copied().chain([&*last]);
            let cells: Vec<&str> = cells.map(|cell| beginning(cell, LONGEST_WORD)).collect();
            each(Row { columns: &columns, cells: &cells, table, interval })?;
        }
    }
    // A head without rows is an interval in which nothing happened.
    Ok(tables.iter().map(|table| table.count + usize::from(table.is_open)).collect())
}

/// The time at the beginning of a line, and the words behind it. The header of `pidstat -h` has `Time` in its place.
pub(super) fn timed<'a, 'b>(words: &'b [&'a str]) -> Timed<'a, 'b> {
    let (first, rest) = words.split_first()?;
    let is_epoch = first.len() >= 9 && first.bytes().all(|byte| byte.is_ascii_digit());
    match rest.split_first() {
        // Both halves of a day have the same clock, but never in a row.
        Some((half, rest)) if is_clock(first) && is_half(half) => Some((first, rest)),
        _ if is_clock(first) || is_epoch || *first == "Time" => Some((first, rest)),
        _ => None,
    }
}

/// True for hours, minutes and seconds, as `10:20:30`, `10.20.30` or `10時20分30秒`.
fn is_clock(word: &str) -> bool {
    let is_digit = |character: char| character.is_ascii_digit();
    let parts = word.split(|character: char| !is_digit(character)).filter(|part| !part.is_empty());
    let is_short = |len: usize| (1..=2).contains(&len);
    word.starts_with(is_digit)
        && !word.contains(['/', '-'])
        && parts.clone().count() == 3
        && parts.clone().all(|part| is_short(part.len()))
}

fn is_half(word: &str) -> bool {
    HALVES.iter().any(|half| half.eq_ignore_ascii_case(word))
}

/// True for the time zone that some locales write behind a clock of twelve hours, above a table.
fn is_zone(words: &[&str], word: &str, rest: &[&str]) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_uppercase() || b"+-:0123456789".contains(&byte);
    words.get(1).is_some_and(|half| is_half(half))
        && !rest.is_empty()
        && word.bytes().all(is_letter)
        && !ITEMS.contains(&word)
        && !LISTS.contains(&word)
}

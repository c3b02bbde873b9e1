//! The meaning of a column: a metric, a key, the time of a row.

use std::collections::{BTreeMap, BTreeSet};

use super::number::{Cell, Decimal};
use super::table::Row;
use crate::inputs::collect::beginning;
use crate::{Error, Result};

/// Names of columns that may hold the time of a row.
const TIMES: [&str; 7] = ["time", "timestamp", "ts", "date", "datetime", "elapsed", "epoch"];
/// Those of a moment, not of a duration.
const MOMENTS: [&str; 5] = ["timestamp", "ts", "date", "datetime", "epoch"];
/// Seconds since 1970, or parts of them, are above this for any year of these tools.
const EPOCH: f64 = 1e8;
/// Names of columns that may number the rows, however few.
const NUMBERS: [&str; 12] =
    ["column_1", "#", "i", "n", "id", "no", "nr", "run", "row", "index", "iteration", "repetition"];
/// From this many rows on, an order is hardly by chance.
const ENOUGH: usize = 8;
/// More values are hardly those that a person chose for an experiment.
const MOST_CHOSEN: usize = 32;

/// The meaning of a column.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Column {
    /// Numbers with a unit, missing ones as `None`.
    Metric { unit: String, values: Vec<Option<f64>> },
    /// Texts that come again: the metrics are those of each.
    Key,
    /// Numbers in equal blocks or in turn, as those of an experiment are: a key, or results that the texts of a row tell.
    Setting(Vec<Option<f64>>),
    /// The same text in all rows.
    Fact(String),
    /// Nothing that can be compared, with the reason.
    LeftOut(&'static str),
}

impl Column {
    /// Judges the column `index` called `name`.
    pub(super) fn new(name: &str, index: usize, rows: &[Row], decimal: Decimal) -> Result<Self> {
        let text = |row: &Row| row.cells.get(index).unwrap_or_default().to_owned();
        let cells: Vec<Cell> = rows.iter().map(|row| Cell::new(&text(row), decimal)).collect();
        let unit = unit_of_most(&cells);
        let value = |cell: &Cell| match cell {
            Cell::Number { value, unit: own } if *own == unit => Some(*value),
            // Zero needs no unit.
            Cell::Number { value: 0.0, unit: own } if own.is_empty() => Some(0.0),
            _ => None,
        };
        let values: Vec<Option<f64>> = cells.iter().map(value).collect();
        let is_other = |cell: &Cell| *cell != Cell::Missing && value(cell).is_none();
        let (numbers, others) =
            (values.iter().flatten().count(), cells.iter().filter(|cell| is_other(cell)).count());
        if numbers > others {
            if let Some(row) = cells.iter().position(is_other) {
                return Err(Error::corrupt(format!(
                    "column `{name}`, line {}: `{}` is no number like those in the other rows; write one, or N/A",
                    rows[row].line,
                    shown(&text(&rows[row]))
                )));
            }
            return Ok(of_numbers(name, unit, values));
        }
        if cells.iter().all(|cell| *cell == Cell::Missing) {
            return Ok(Self::LeftOut("empty"));
        }
        let dates = cells.iter().filter(|cell| **cell == Cell::Date).count();
        if 2 * dates > others {
            return Ok(Self::LeftOut("dates"));
        }
        let texts: BTreeSet<String> = rows.iter().map(text).collect();
        Ok(match texts.len() {
            1 => Self::Fact(texts.into_iter().next().unwrap_or_default()),
            many if 2 * many <= rows.len() => Self::Key,
            // Names of cases, with a row each.
            _ if 2 * texts.iter().filter(|text| is_word(text)).count() > texts.len() => Self::Key,
            _ => Self::LeftOut("texts, most of them different"),
        })
    }
}

fn of_numbers(name: &str, unit: String, values: Vec<Option<f64>>) -> Column {
    let lower = name.to_lowercase();
    let all: Vec<f64> = values.iter().flatten().copied().collect();
    let is_whole = all.len() == values.len() && all.iter().all(|value| value.fract() == 0.0);
    let grows = all.len() > 1 && all.windows(2).all(|two| two[0] < two[1]);
    let is_epoch = !all.is_empty() && all.iter().all(|value| *value > EPOCH);
    if TIMES.contains(&lower.as_str())
        && (unit.is_empty() || unit == "seconds")
        && ((MOMENTS.contains(&lower.as_str()) && is_epoch) || grows && all.len() >= ENOUGH)
    {
        return Column::LeftOut("the time of each row: it grows");
    }
    let counts = is_whole && all.len() > 1 && all.windows(2).all(|two| two[1] - two[0] == 1.0);
    if counts && (all.len() >= ENOUGH || NUMBERS.contains(&lower.as_str())) {
        return Column::LeftOut("numbers of the rows");
    }
    match is_whole && unit.is_empty() && is_chosen(&all) {
        true => Column::Setting(values),
        false => Column::Metric { unit, values },
    }
}

/// Returns true if a few values come in equal blocks, or in turn: settings of an experiment, no results.
fn is_chosen(all: &[f64]) -> bool {
    let mut places: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (place, value) in all.iter().enumerate() {
        places.entry(value.to_bits()).or_default().push(place);
    }
    let kinds = places.len();
    if all.len() < ENOUGH || !(2..=MOST_CHOSEN).contains(&kinds) || 2 * kinds > all.len() {
        return false;
    }
    let apart = |step: usize| {
        places.values().all(|places| places.windows(2).all(|two| two[1] - two[0] == step))
    };
    let are_equal = places.values().all(|places| places.len() * kinds == all.len());
    are_equal && (apart(1) || apart(kinds))
}

/// Returns true for a text without digits: no identifier of a row.
fn is_word(text: &str) -> bool {
    !text.bytes().any(|byte| byte.is_ascii_digit())
}

fn unit_of_most(cells: &[Cell]) -> String {
    let mut units: BTreeMap<&str, usize> = BTreeMap::new();
    for cell in cells {
        if let Cell::Number { unit, .. } = cell {
            *units.entry(unit).or_default() += 1;
        }
    }
    let most = units.into_iter().max_by_key(|(_, count)| *count);
    most.map_or(String::new(), |(unit, _)| unit.to_owned())
}

/// A cell as a message shows it.
pub(super) fn shown(cell: &str) -> String {
    let start = beginning(cell, 60);
    if start.len() < cell.len() { format!("{start}…") } else { cell.to_owned() }
}

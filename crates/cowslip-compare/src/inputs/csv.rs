//! CSV: a header, a metric a column, a sample a row.

use std::collections::HashMap;

use csv::{ErrorKind, ReaderBuilder, Trim};

use super::{Metric, Run, unknown};
use crate::{Error, Result};

/// Columns with times, which are no metrics.
const TIMES: [&str; 6] = ["time", "timestamp", "date", "datetime", "elapsed", "epoch"];

pub(super) fn parse(text: &str, name: &str) -> Result<Run> {
    let header = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
    let count = |delimiter: &u8| header.bytes().filter(|byte| byte == delimiter).count();
    let delimiter = b",;\t".iter().copied().rev().max_by_key(count).expect("there are three");
    let mut reader = ReaderBuilder::new()
        .delimiter(delimiter)
        .comment(Some(b'#'))
        .trim(Trim::All)
        .from_reader(text.as_bytes());
    let broken = |error: csv::Error| unknown(&fault(&error));
    let names: Vec<String> = reader.headers().map_err(broken)?.iter().map(str::to_owned).collect();
    let mut places = HashMap::new();
    for (second, name) in names.iter().enumerate() {
        if let Some(first) = places.insert(name, second) {
            let (first, second) = (first + 1, second + 1);
            let why = format!(
                "columns {first} and {second} are both called `{name}`; give one another name"
            );
            return Err(Error::corrupt(format!("as CSV: {why}")));
        }
    }
    let mut columns: Vec<Option<Vec<f64>>> = vec![Some(Vec::new()); names.len()];
    let mut rows = 0;
    for row in reader.records() {
        rows += 1;
        for (column, cell) in columns.iter_mut().zip(row.map_err(broken)?.iter()) {
            match (cell.parse(), cell.is_empty()) {
                (_, true) => {}
                (Ok(value), _) => column.iter_mut().for_each(|column| column.push(value)),
                (Err(_), _) => *column = None,
            }
        }
    }
    let mut run = Run::new(name);
    for (name, column) in names.iter().zip(columns) {
        if TIMES.contains(&name.to_lowercase().as_str()) {
            continue;
        }
        let Some(samples) = column else {
            run.left_out += 1;
            continue;
        };
        run.left_out += samples.iter().filter(|value| !value.is_finite()).count();
        run.add(name, Metric::levels(samples).map(Metric::untyped));
    }
    if run.metrics.is_empty() {
        let why = format!("{rows} rows under {} heads, and no column of numbers", names.len());
        return Err(unknown(&why));
    }
    Ok(run)
}

fn fault(error: &csv::Error) -> String {
    match error.kind() {
        ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.as_ref().map_or(0, csv::Position::line);
            format!("line {line} has {len} fields, and the lines above it {expected_len}")
        }
        _ => error.to_string(),
    }
}

//! Tables in a text: their heads and rows, whatever separates the cells.

use std::borrow::Cow;

use csv::{ErrorKind, ReaderBuilder, StringRecord, Trim};

use super::number::{self, Cell, Decimal};
use crate::inputs::unknown;
use crate::{Error, Result};

/// Fields between two bars are none of a table with columns.
const LARGEST_COLUMNS: usize = 50_000;

/// `sadf -d` has some forty reports.
const MOST_TABLES: usize = 1000;

/// A head, and the rows below it.
pub(super) struct Table {
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<Row>,
}

/// A row, and its line in the file.
pub(super) struct Row {
    pub(super) line: u64,
    pub(super) cells: StringRecord,
}

/// Splits a text into tables: a comment that has the fields of a head begins another one, as in `sadf -d`.
pub(super) fn tables(text: &str) -> Result<Vec<Table>> {
    let (delimiter, text, skipped) = delimiter(text)?;
    let mut tables: Vec<Table> = Vec::new();
    let mut rows = ReaderBuilder::new()
        .delimiter(delimiter)
        .has_headers(false)
        .flexible(true)
        .trim(Trim::All)
        .from_reader(text.as_bytes());
    let mut comment: Option<Vec<String>> = None;
    // The table of the last row.
    let mut current = 0;
    let mut are_commented = false;
    let mut record = StringRecord::new();
    loop {
        let is_row = rows.read_record(&mut record).map_err(|error| unknown(&fault(&error)))?;
        if !is_row {
            break;
        }
        if record.len() > LARGEST_COLUMNS {
            return Err(Error::corrupt(format!(
                "as CSV: it has more than {LARGEST_COLUMNS} columns"
            )));
        }
        let line = record.position().map_or(0, csv::Position::line) + skipped;
        if let Some(first) = record.get(0).and_then(|cell| cell.strip_prefix('#')) {
            let others = record.iter().skip(1).map(str::to_owned);
            comment = Some([first.trim().to_owned()].into_iter().chain(others).collect());
            continue;
        }
        // A note of sysstat, in the place of a row.
        if record.iter().any(|cell| cell.starts_with("LINUX-RESTART")) {
            continue;
        }
        // Any other comment is a remark: above a head, or in a table whose head is none.
        let is_head_of_it = |heads: &Vec<String>| {
            heads.len() == record.len()
                && !is_numbers(heads)
                && record.iter().any(is_number)
                && (tables.is_empty() || are_commented)
        };
        if let Some(heads) = comment.take().filter(is_head_of_it) {
            are_commented = true;
            current = find(&mut tables, heads)?;
        } else if tables.is_empty() {
            let cells: Vec<String> = record.iter().map(str::to_owned).collect();
            current = match is_numbers(&cells) {
                false => find(&mut tables, cells),
                // Without a head, columns have numbers.
                true => {
                    find(&mut tables, (1..=cells.len()).map(|n| format!("column_{n}")).collect())
                }
            }?;
        }
        let table = &mut tables[current];
        // Files of several measurements repeat the head.
        if record.iter().eq(table.heads.iter().map(String::as_str)) {
            continue;
        }
        if record.len() != table.heads.len() {
            let (len, wanted) = (record.len(), table.heads.len());
            let why = format!("line {line} has {len} fields, and the lines above it {wanted}");
            return Err(unknown(&why));
        }
        table.rows.push(Row { line, cells: record.clone() });
    }
    Ok(tables)
}

/// The table with these heads, which may be a new one.
fn find(tables: &mut Vec<Table>, heads: Vec<String>) -> Result<usize> {
    if let Some(found) = tables.iter().position(|table| table.heads == heads) {
        return Ok(found);
    }
    if tables.len() == MOST_TABLES {
        return Err(Error::corrupt(format!(
            "as CSV: it has more than {MOST_TABLES} different heads"
        )));
    }
    tables.push(Table { heads, rows: Vec::new() });
    Ok(tables.len() - 1)
}

/// The delimiter, the text below a line that names it, and the number of lines above that.
fn delimiter(text: &str) -> Result<(u8, Cow<'_, str>, u64)> {
    // For Excel.
    if let Some(rest) = text.strip_prefix("sep=").or(text.strip_prefix("\"sep=")) {
        let (head, rest) = rest.split_once('\n').unwrap_or((rest, ""));
        let delimiter = head.bytes().next().filter(u8::is_ascii);
        let delimiter =
            delimiter.ok_or_else(|| unknown("its first line is `sep=`, without a character"))?;
        return Ok((delimiter, rest.into(), 1));
    }
    let is_row = |line: &&str| !line.starts_with('#') && !line.trim().is_empty();
    // A quotation mark in a comment does not begin a cell.
    let is_quoting = |line: &str| line.starts_with('#') && line.contains('"');
    let text: Cow<'_, str> = match text.lines().any(is_quoting) {
        true => text
            .lines()
            .map(|line| if is_quoting(line) { "\n".into() } else { format!("{line}\n") })
            .collect::<String>()
            .into(),
        false => text.into(),
    };
    let head = text.lines().find(is_row).unwrap_or_default();
    let count = |delimiter: &u8| head.bytes().filter(|byte| byte == delimiter).count();
    let delimiter = b",;\t|".iter().copied().rev().max_by_key(count).expect("there are four");
    // A decimal comma is none.
    let widths = || text.lines().filter(is_row).map(|line| line.split_whitespace().count());
    let columns = widths().next().unwrap_or(0);
    if count(&delimiter) == 0 && columns > 1 && widths().all(|width| width == columns) {
        let joined = |line: &str| line.split_whitespace().collect::<Vec<_>>().join("\t") + "\n";
        let comment = |line: &str| {
            let rest = line.strip_prefix('#').unwrap_or(line);
            let mark = if rest.len() < line.len() { "#" } else { "" };
            format!("{mark}{}", joined(rest))
        };
        return Ok((b'\t', text.lines().map(comment).collect::<String>().into(), 0));
    }
    Ok((delimiter, text, 0))
}

/// Returns true if all cells are numbers or missing: no head has such names.
fn is_numbers(cells: &[String]) -> bool {
    cells.iter().any(|cell| is_number(cell))
        && cells.iter().all(|cell| cell.is_empty() || is_number(cell))
}

fn is_number(cell: &str) -> bool {
    [Decimal::Point, Decimal::Comma]
        .iter()
        .any(|decimal| matches!(Cell::new(cell, *decimal), Cell::Number { .. } | Cell::Date))
}

/// The decimal mark of all numbers in a table.
pub(super) fn decimal(table: &Table) -> Result<Decimal> {
    let cells = table.rows.iter().flat_map(|row| row.cells.iter());
    number::decimal(cells).map_err(|cell| {
        Error::corrupt(format!(
            "as CSV: `{cell}` may have a decimal comma or three digits in a group, and no other cell tells; \
             write it with a decimal point"
        ))
    })
}

fn fault(error: &csv::Error) -> String {
    match error.kind() {
        ErrorKind::Utf8 { .. } => "it is no text".to_owned(),
        _ => error.to_string(),
    }
}

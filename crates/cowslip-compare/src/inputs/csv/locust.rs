//! The files that Locust's `--csv NAME` writes: a row an endpoint, or a row a second and endpoint, and lists of errors.

use std::path::PathBuf;

use super::column::Column;
use super::table::Table;
use crate::{Error, Result};

/// The columns that say which endpoint a row is about.
const KEYS: [&str; 2] = ["Type", "Name"];
const REQUESTS: &str = "Requests/s";
/// The beginnings of columns, and of none in a file of another tool.
const STATS: [&str; 3] = ["Type", "Name", "Request Count"];
const HISTORY: [&str; 4] = ["Timestamp", "User Count", "Type", "Name"];
const LISTS: [&[&str]; 2] =
    [&["Method", "Name", "Error", "Occurrences"], &["Count", "Message", "Traceback", "Nodes"]];
/// The end of the name of the file that counts.
const STATS_FILE: &str = "_stats.csv";
/// Those of the files beside it.
const OTHER_FILES: [&str; 3] = ["_stats_history.csv", "_failures.csv", "_exceptions.csv"];

fn begins_with(heads: &[String], columns: &[&str]) -> bool {
    heads.len() >= columns.len() && heads.iter().zip(columns).all(|(head, column)| head == column)
}

/// True for results by endpoint.
pub(super) fn is_table(heads: &[String]) -> bool {
    begins_with(heads, &STATS) || begins_with(heads, &HISTORY)
}

/// Refuses a list of errors.
pub(super) fn refuse_list(heads: &[String]) -> Result<()> {
    match LISTS.iter().any(|columns| begins_with(heads, columns)) {
        true => Err(Error::corrupt(
            "it is Locust's list of failures or exceptions; take its `_stats.csv`, which counts them, or its \
             `_stats_history.csv`",
        )),
        false => Ok(()),
    }
}

/// The meaning of a column that its cells do not tell.
pub(super) fn column(head: &str) -> Option<Column> {
    match head {
        _ if KEYS.contains(&head) => Some(Column::Key),
        _ if head.starts_with("Total ") => Some(Column::LeftOut("of all seconds before, too")),
        _ => None,
    }
}

/// Takes out the zeros that stand for the percentiles of no request.
pub(super) fn without_empty_percentiles(table: &mut Table) {
    let Some(requests) = table.heads.iter().position(|head| head == REQUESTS) else { return };
    for row in &mut table.rows {
        let requests = row.cells.get(requests).and_then(|cell| cell.parse().ok());
        if requests == Some(0.0) {
            let cells = table.heads.iter().zip(&row.cells);
            let cells = cells.map(|(head, cell)| match cell {
                "0" if head.ends_with('%') => "",
                _ => cell,
            });
            row.cells = cells.collect();
        }
    }
}

/// Takes out the files that tell of a run which another one in the same folder is about.
pub(in crate::inputs) fn take_out_copies(files: &mut Vec<PathBuf>) -> Vec<PathBuf> {
    let all = files.clone();
    let is_copy = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let beginning = OTHER_FILES.iter().find_map(|end| name.strip_suffix(end));
        let stats = beginning.map(|name| path.with_file_name(format!("{name}{STATS_FILE}")));
        stats.is_some_and(|stats| all.contains(&stats))
    };
    files.extract_if(.., |path| is_copy(path)).collect()
}

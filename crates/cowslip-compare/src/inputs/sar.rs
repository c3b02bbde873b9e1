//! Text of sar and mpstat: one run, a metric a column, or an item and column, such as `fault/s` and `dev.vda.await`.

use std::collections::BTreeSet;

use super::Run;
use super::sysstat_text::{ITEMS, LISTS, Series, is_rate, rows, timed};
use super::units::number;
use crate::Result;

/// Items that `-z` leaves out while nothing happens to them.
const OFTEN_IDLE: [&str; 4] = ["INTR", "DEV", "IFACE", "TTY"];
/// Columns of texts.
const TEXTS: [&str; 2] = ["DEVICE", "status"];
/// The first column of the calls of NFS, one of which has the name of a column of TCP.
const NFS: &str = "call/s";

/// True for the columns of a table: each row has a number.
fn is_header(columns: &[&str]) -> bool {
    !columns.is_empty() && columns.iter().all(|word| *word != "-" && number(word).is_none())
}

pub(super) fn parse(text: &str, file: &str) -> Result<Run> {
    let mut series = Series::default();
    let mut lists = BTreeSet::new();
    let intervals = rows(text, timed, is_header, |row| {
        if let Some(list) = LISTS.iter().find(|list| row.columns.contains(list)) {
            lists.insert(*list);
            return Ok(());
        }
        // With --pretty, the item comes last.
        let item = row.columns.iter().position(|column| ITEMS.contains(column));
        let place = match item {
            Some(at) => format!("{}.{}.", row.columns[at].to_lowercase(), row.cells[at]),
            None if row.columns[0] == NFS => "nfs.".to_owned(),
            None => String::new(),
        };
        let is_often_idle = item.is_some_and(|at| OFTEN_IDLE.contains(&row.columns[at]));
        for (index, column) in row.columns.iter().enumerate() {
            if item != Some(index) && !TEXTS.contains(column) {
                let is_rate = is_often_idle && (is_rate(column) || row.columns.contains(&"INTR"));
                series.add(&format!("{place}{column}"), &row, is_rate, row.value(index)?);
            }
        }
        Ok(())
    })?;
    let mut run = series.into_run(file, &intervals, 0)?;
    let reason = "what is plugged in, not how much it does";
    run.left_out = lists.iter().map(|list| format!("table `{list}` ({reason})")).collect();
    Ok(run)
}

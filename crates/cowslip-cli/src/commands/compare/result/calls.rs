//! The system calls that grew, as a table.

use cowslip_compare::calls::CallDifference;

use super::ledger::{Cells, counts};

/// Rows, the head first.
pub(super) fn rows(found: &CallDifference) -> Vec<Cells> {
    let head = format!("calls a run, in {} and {} more", found.runs.0, found.runs.1);
    let [good, bad, difference, time] = ["good", "bad", "difference", "time"].map(str::to_owned);
    let rows = found.calls.iter().map(|row| counts(&row.name, row.count.means, Some(row.added())));
    [[head, good, bad, difference, time]].into_iter().chain(rows).collect()
}

//! Text of iostat: one run, a metric a device and column, such as `dev.vda.w_await`, and the processors' as `cpu.all.%user`.

use super::Run;
use super::sysstat_text::{Series, is_rate, rows};
use crate::{Error, Result};

/// The beginning of the head above the processors' shares.
const PROCESSORS: &str = "avg-cpu:";
/// Amounts of an interval, in columns such as `kB_read`.
const AMOUNTS: [&str; 3] = ["kB_", "MB_", "Blk_"];

/// The advice for a single report.
pub(super) const NO_INTERVAL: &str = "iostat's only report holds the means since the start of the machine; give it an \
     interval, such as `iostat -xt 1`";

/// The words of a line, as times do not stand in the rows.
fn split<'a, 'b>(words: &'b [&'a str]) -> Option<(&'a str, &'b [&'a str])> {
    match words {
        [] => None,
        [PROCESSORS, rest @ ..] => Some(("", rest)),
        all => Some(("", all)),
    }
}

fn device(columns: &[&str]) -> Option<usize> {
    let is_device = |column: &str| column.trim_end_matches(':') == "Device";
    let (first, last) = (columns.first()?, columns.last()?);
    // With --pretty, the device comes last. Other texts may have the word, behind a time.
    match (is_device(first), is_device(last) && is_rate(first)) {
        (true, _) => Some(0),
        (false, true) => Some(columns.len() - 1),
        (false, false) => None,
    }
}

fn is_header(columns: &[&str]) -> bool {
    device(columns).is_some() || columns.first() == Some(&"%user")
}

/// Leaves out the first report, which holds the means since the start of the machine, unless `-y` did.
pub(super) fn parse(text: &str, file: &str) -> Result<Run> {
    let mut series = Series::default();
    let intervals = rows(text, split, is_header, |row| {
        let at = device(row.columns);
        let place = at.map_or("cpu.all".to_owned(), |at| format!("dev.{}", row.cells[at]));
        for (index, column) in
            row.columns.iter().enumerate().filter(|(index, _)| at != Some(*index))
        {
            let is_amount = AMOUNTS.iter().any(|amount| column.starts_with(amount));
            let is_rate = is_rate(column) || is_amount;
            series.add(&format!("{place}.{column}"), &row, is_rate, row.value(index)?);
        }
        Ok(())
    })?;
    // -y leaves a second empty line above the first report.
    let is_empty = |line: Option<&str>| line.is_some_and(|line| line.trim().is_empty());
    let mut lines = text.lines().skip_while(|line| line.trim().is_empty()).skip(1);
    let skipped = usize::from(!(is_empty(lines.next()) && is_empty(lines.next())));
    if intervals.iter().any(|count| *count <= skipped) {
        return Err(Error::corrupt(NO_INTERVAL));
    }
    series.into_run(file, &intervals, skipped)
}

//! The comparison as a table, on a terminal or in a log.

use cowslip_compare::{Comparison, Row, Verdict};
use cowslip_report::text;

use super::{Report, Settings, format};

const HEADS: [&str; 10] = [
    "verdict",
    "metric",
    "good",
    "bad",
    "change",
    "t",
    "p",
    "adjusted",
    "rank p",
    "effect g [interval]",
];
/// Columns of words; the others are right-aligned.
const WORDS: [usize; 2] = [0, 1];

pub(super) fn render(comparison: &Comparison, report: &Report, settings: &Settings) -> String {
    let causes = [&report.cause].into_iter().chain(&report.beside);
    let mut lines: Vec<String> = causes.map(|cause| text::printable(cause)).collect();
    lines.push(String::new());
    for table in [&report.ledger, &report.profile, &report.calls]
        .into_iter()
        .filter(|table| !table.is_empty())
    {
        let rows = table.iter().map(|row| row.to_vec()).collect();
        lines.extend(aligned(rows, &[0]));
        lines.push(String::new());
    }
    lines.extend(report.primary.iter().map(|sentence| text::printable(sentence)));
    lines.extend([format::headline(comparison), String::new()]);
    let is_shown = |row: &&Row| settings.all || row.verdict != Verdict::Unproven;
    let rows: Vec<Vec<String>> = comparison.rows.iter().filter(is_shown).map(cells).collect();
    if !rows.is_empty() {
        let heads = HEADS.map(str::to_owned).to_vec();
        lines.extend(aligned([heads].into_iter().chain(rows).collect(), &WORDS));
        lines.push(String::new());
    }
    lines.extend(report.advice.iter().map(|sentence| text::printable(sentence)));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let (good, bad) = row.means;
    vec![
        format::verdict(row).to_owned(),
        text::printable(&row.metric),
        format::value(&row.metric, good),
        format::value(&row.metric, bad),
        row.change.map_or("–".to_owned(), |change| format::percent(change.value)),
        format::t(row),
        format::p(row.p),
        format::p(row.adjusted_p),
        format::p(row.rank.p),
        format::effect(row.effect),
    ]
}

/// Lines of rows with as many cells each; columns of words are left-aligned, the others right-aligned.
fn aligned(mut rows: Vec<Vec<String>>, words: &[usize]) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    for column in (0..columns).filter(|column| !words.contains(column)) {
        let widest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        for row in &mut rows {
            row[column] = format!("{:>widest$}", row[column]);
        }
    }
    text::align(&rows).iter().map(|line| line.trim_end().to_owned()).collect()
}

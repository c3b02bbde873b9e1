//! The comparison as a table, on a terminal or in a log.

use cowslip_compare::{Comparison, Row, Verdict};
use cowslip_report::text;

use super::{How, Said, format};

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

pub(super) fn render(comparison: &Comparison, said: &Said, how: &How) -> String {
    let mut lines = vec![text::printable(&said.cause), format::headline(comparison), String::new()];
    let is_shown = |row: &&Row| how.all || row.verdict != Verdict::Unproven;
    let rows: Vec<Vec<String>> = comparison.rows.iter().filter(is_shown).map(cells).collect();
    if !rows.is_empty() {
        let heads = HEADS.map(str::to_owned).to_vec();
        let rows = right_align([heads].into_iter().chain(rows).collect());
        lines.extend(text::align(&rows).iter().map(|line| line.trim_end().to_owned()));
        lines.push(String::new());
    }
    lines.extend(said.advice.iter().map(|it| text::printable(it)));
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

fn right_align(mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    for column in (0..HEADS.len()).filter(|column| !WORDS.contains(column)) {
        let widest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        for row in &mut rows {
            row[column] = format!("{:>widest$}", row[column]);
        }
    }
    rows
}

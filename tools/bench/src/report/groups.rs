//! The rows of a report as tables: one per metric, one line per system, size and variant.

use std::collections::HashSet;

use super::results::{Report, Row};
use cowslip_report::units;

/// The order of the columns; other stats follow in the order in which they were measured.
const ORDER: [&str; 6] = ["value", "p50", "p99", "p999", "max", "mean"];

pub(super) struct Group<'a> {
    pub(super) metric: &'a str,
    pub(super) stats: Vec<&'a str>,
    pub(super) lines: Vec<Line<'a>>,
}

pub(super) struct Line<'a> {
    pub(super) system: &'a str,
    pub(super) size_bytes: Option<u64>,
    pub(super) variant: Option<&'a str>,
    pub(super) skipped: Option<&'a str>,
    rows: Vec<&'a Row>,
}

/// All rows.
pub(super) fn groups(report: &Report) -> Vec<Group<'_>> {
    group(report.rows.iter())
}

/// Rows without the parts of a summary: the variants of a system's metric are left out if there is a row without a
/// variant.
pub(super) fn summaries(report: &Report) -> Vec<Group<'_>> {
    let summed: HashSet<_> = report
        .rows
        .iter()
        .filter(|row| row.variant.is_none() && row.skipped.is_none())
        .map(|row| (&row.system, &row.metric, row.size_bytes))
        .collect();
    group(report.rows.iter().filter(|row| {
        row.variant.is_none() || !summed.contains(&(&row.system, &row.metric, row.size_bytes))
    }))
}

fn group<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        let at = groups.iter().position(|group| group.metric == row.metric).unwrap_or_else(|| {
            groups.push(Group { metric: &row.metric, stats: Vec::new(), lines: Vec::new() });
            groups.len() - 1
        });
        groups[at].add(row);
    }
    for group in &mut groups {
        group.stats.sort_by_key(|stat| {
            ORDER.iter().position(|known| known == stat).unwrap_or(ORDER.len())
        });
    }
    groups
}

impl<'a> Group<'a> {
    fn add(&mut self, row: &'a Row) {
        let key = (row.system.as_str(), row.size_bytes, row.variant.as_deref());
        let at = self.lines.iter().position(|line| line.key() == key).unwrap_or_else(|| {
            let (system, size_bytes, variant) = key;
            let rows = Vec::new();
            self.lines.push(Line { system, size_bytes, variant, skipped: None, rows });
            self.lines.len() - 1
        });
        let line = &mut self.lines[at];
        if row.skipped.is_some() {
            line.skipped = row.skipped.as_deref();
        } else {
            line.rows.push(row);
            if !self.stats.contains(&row.stat.as_str()) {
                self.stats.push(&row.stat);
            }
        }
    }
}

impl Group<'_> {
    pub(super) fn has_size(&self) -> bool {
        self.lines.iter().any(|line| line.size_bytes.is_some())
    }

    pub(super) fn has_variant(&self) -> bool {
        self.lines.iter().any(|line| line.variant.is_some())
    }

    pub(super) fn has_n(&self) -> bool {
        self.lines.iter().any(|line| line.n().is_some())
    }
}

impl<'a> Line<'a> {
    fn key(&self) -> (&'a str, Option<u64>, Option<&'a str>) {
        (self.system, self.size_bytes, self.variant)
    }

    pub(super) fn row(&self, stat: &str) -> Option<&'a Row> {
        self.rows.iter().copied().find(|row| row.stat == stat)
    }

    pub(super) fn value(&self, stat: &str) -> Option<f64> {
        self.row(stat)?.value
    }

    pub(super) fn human(&self, stat: &str) -> Option<String> {
        let row = self.row(stat)?;
        Some(units::human(row.value?, row.unit))
    }

    pub(super) fn measured(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Returns true if some of it was measured while the host was unfit.
    pub(super) fn unfit(&self) -> bool {
        self.rows.iter().any(|row| row.host.is_some_and(|host| !host.host_fit))
    }

    pub(super) fn n(&self) -> Option<u64> {
        self.rows.iter().filter_map(|row| row.n).max()
    }
}

/// The name of a stat as a heading.
pub(super) fn heading(stat: &str) -> &str {
    if stat == "p999" { "p99.9" } else { stat }
}

/// Returns true if figures under this name were published by others, not measured in this run: it ends with a year.
pub(super) fn published(name: &str) -> bool {
    let year = name.rsplit_once(' ').map(|(_, year)| year);
    year.is_some_and(|year| year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit()))
}

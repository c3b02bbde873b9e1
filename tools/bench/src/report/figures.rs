//! Tables of figures in pages for people, filled in from the newest results of a quiet host.
//!
//! ```text
//! FOLDER/figures.json:  {"NAME": {"heads": ["", "fork", "Cowslip"],
//!                                 "rows": [["pause at 1 GiB", "cow fork-4k fork_pause p50 1073741824", …]]}}
//! a page:               <!-- figures NAME -->
//!                       the table
//!                       <!-- end -->
//! ```
//!
//! A cell names its bench, system, metric, statistic, size (`-`: none) and variant; `=TEXT` is that text. The best of a
//! row, or with `"best": "column"` of a column, is bold: the least, but the most of shares and rates.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::summary::{entries, parse};
use cowslip_report::units;

const BEGIN: &str = "<!-- figures ";
const END: &str = "<!-- end -->";

/// Fills the tables of `page` from the results in `folder`.
///
/// # Errors
/// Errors of the file system; [`io::ErrorKind::InvalidData`] for a table, a result or a figure that is missing.
pub fn fill(folder: &Path, page: &str) -> io::Result<String> {
    let tables = parse(&folder.join("figures.json"))?;
    let mut filled = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->\n").ok_or_else(|| wrong("a table's begin"))?;
        let (_, after) =
            after.split_once(END).ok_or_else(|| wrong(&format!("{name} has no {END}")))?;
        let table = tables.get(name).ok_or_else(|| wrong(&format!("no table {name}")))?;
        let _ = write!(filled, "{before}{BEGIN}{name} -->\n{}{END}", markdown(folder, table)?);
        rest = after;
    }
    Ok(filled + rest)
}

fn markdown(folder: &Path, table: &Value) -> io::Result<String> {
    let texts = |value: &Value| -> Vec<String> {
        let cells = value.as_array().into_iter().flatten();
        cells.map(|it| it.as_str().unwrap_or_default().to_owned()).collect()
    };
    let heads = texts(&table["heads"]);
    let mut markdown =
        format!("| {} |\n| --- |{}\n", heads.join(" | "), " ---: |".repeat(heads.len() - 1));
    let mut labels = Vec::new();
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for row in table["rows"].as_array().into_iter().flatten() {
        let row = texts(row);
        labels.push(row[0].clone());
        rows.push(row[1..].iter().map(|cell| Cell::of(folder, cell)).collect::<io::Result<_>>()?);
    }
    let least = |costs: &mut dyn Iterator<Item = f64>| costs.min_by(f64::total_cmp);
    let is_by_column = table["best"] == "column";
    for (label, row) in labels.iter().zip(&rows) {
        let _ = write!(markdown, "| {label} |");
        for (column, cell) in row.iter().enumerate() {
            let best = if is_by_column {
                least(&mut rows.iter().filter_map(|row| row.get(column)?.cost()))
            } else {
                least(&mut row.iter().filter_map(Cell::cost))
            };
            let _ = write!(markdown, " {} |", cell.told(best));
        }
        markdown.push('\n');
    }
    Ok(markdown)
}

enum Cell {
    Text(String),
    Figure { value: f64, unit: String },
}

impl Cell {
    fn of(folder: &Path, spec: &str) -> io::Result<Self> {
        if let Some(text) = spec.strip_prefix('=') {
            return Ok(Self::Text(text.to_owned()));
        }
        let missing = || wrong(&format!("no result has: {spec}"));
        let words: Vec<&str> = spec.splitn(6, ' ').collect();
        let [bench, system, metric, stat, size, variant @ ..] = words.as_slice() else {
            return Err(wrong(&format!("not a figure: {spec}")));
        };
        let results = folder.join("results");
        let file = |run: &String| results.join(run).join(format!("{bench}.json"));
        let runs = entries(&results)?;
        let newest = runs.iter().rev().filter(|run| run.ends_with("-quiet")).map(file);
        let report = parse(&newest.into_iter().find(|it| it.is_file()).ok_or_else(missing)?)?;
        let is_it = |row: &&Value| {
            row["system"] == *system
                && row["metric"] == *metric
                && row["stat"] == *stat
                && row["size_bytes"].as_u64() == size.parse().ok()
                && row["variant"].as_str() == variant.first().copied()
        };
        let row =
            report["rows"].as_array().into_iter().flatten().find(is_it).ok_or_else(missing)?;
        let value = row["value"].as_f64().ok_or_else(missing)?;
        Ok(Self::Figure { value, unit: row["unit"].as_str().unwrap_or_default().to_owned() })
    }

    /// The less the better.
    fn cost(&self) -> Option<f64> {
        match self {
            Self::Text(_) => None,
            Self::Figure { value, unit } if unit == "ratio" || unit == "1/s" => Some(-value),
            Self::Figure { value, .. } => Some(*value),
        }
    }

    fn told(&self, best: Option<f64>) -> String {
        let told = match self {
            Self::Text(text) => return text.clone(),
            Self::Figure { value, unit } if unit == "ratio" => format!("{:.0} %", value * 100.0),
            Self::Figure { value, unit } => units::human(*value, unit),
        };
        if self.cost() == best { format!("**{told}**") } else { told }
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_figure_that_is_not_there_is_an_error() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks");
        let error = fill(&root, "<!-- figures nothing -->\n<!-- end -->").unwrap_err();
        assert!(error.to_string().contains("no table nothing"), "{error}");
        let error = Cell::of(&root, "cow cowslip no_such_metric p50 -").err().unwrap();
        assert!(error.to_string().contains("no_such_metric"), "{error}");
        assert_eq!(fill(&root, "no table").unwrap(), "no table");
    }

    #[test]
    fn the_best_of_a_row_is_bold() {
        let cell = |value, unit: &str| Cell::Figure { value, unit: unit.to_owned() };
        assert_eq!(cell(2.5e6, "ns").told(Some(2.5e6)), "**2.50 ms**");
        assert_eq!(cell(2.5e6, "ns").told(Some(1e6)), "2.50 ms");
        assert_eq!(cell(1.0, "ratio").told(Some(-1.0)), "**100 %**");
    }

    /// `cowslip-bench report --fill PAGE` was forgotten if this fails.
    #[test]
    fn pages_have_the_figures_of_the_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for page in ["README.md", "docs/restore.md", "docs/guides/redis.md"] {
            let text = fs::read_to_string(root.join(page)).unwrap();
            assert!(text.contains(BEGIN), "{page}");
            assert_eq!(fill(&root.join("benchmarks"), &text).unwrap(), text, "{page}");
        }
    }
}

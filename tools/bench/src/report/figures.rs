//! Figures in pages for people, filled in from the newest results of a quiet host.
//!
//! ```text
//! FOLDER/figures.json:  {"TABLE": {"heads": ["", "fork", "Cowslip"],
//!                                  "rows": [["pause", "cow fork-4k fork_pause p50 1073741824", …]]},
//!                        "NUMBER": "cow cowslip view_pause p50 8589934592"}
//! a page:               <!-- figures TABLE -->
//!                       the table, and the machine, commit and date of its results
//!                       <!-- end -->
//!                       a sentence with <!-- figures NUMBER -->189 µs<!-- end --> in it
//! ```
//!
//! A cell names its bench, system, metric, statistic, size (`-`: none, `*`: any) and variant;
//! `=TEXT` is that text. The best of a row, or with `"best": "column"` of a column, is bold: the
//! least, but the most of shares and rates.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::origin;
use super::summary::{entries, parse};
use cowslip_report::units;

/// The pages with figures.
pub const PAGES: [&str; 6] = [
    "README.md",
    "docs/restore.md",
    "docs/templates.md",
    "docs/trace.md",
    "docs/guides/fuzzing.md",
    "docs/guides/redis.md",
];
/// The picture of the demo, in the results and in the documents.
pub const PICTURE: (&str, &str) = ("demo.svg", "docs/pictures/bgsave.svg");
const BEGIN: &str = "<!-- figures ";
const END: &str = "<!-- end -->";

/// Fills the tables and numbers of `page` from the results in `folder`.
///
/// # Errors
/// Errors of the file system; [`io::ErrorKind::InvalidData`] for a table, a result or a figure that is missing.
pub fn fill(folder: &Path, page: &str) -> io::Result<String> {
    let known = parse(&folder.join("figures.json"))?;
    let mut filled = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->").ok_or_else(|| wrong("a figure's begin"))?;
        let (_, after) =
            after.split_once(END).ok_or_else(|| wrong(&format!("{name} has no {END}")))?;
        let text = match known.get(name).ok_or_else(|| wrong(&format!("no figure {name}")))? {
            Value::String(_)
                if before.rsplit('\n').next().is_none_or(|line| line.trim().is_empty()) =>
            {
                return Err(wrong(&format!("{name} begins a line, which Markdown takes for HTML")));
            }
            Value::String(cell) => Cell::new(folder, cell)?.told(None),
            table => markdown(folder, table)?,
        };
        let _ = write!(filled, "{before}{BEGIN}{name} -->{text}{END}");
        rest = after;
    }
    Ok(filled + rest)
}

/// The demo's picture of the newest quiet results that have one.
///
/// # Errors
/// Errors of the file system.
pub fn picture(folder: &Path) -> io::Result<Option<Vec<u8>>> {
    newest(folder, PICTURE.0)?.map(fs::read).transpose()
}

/// A file of the newest results of a quiet host that have one of this name.
fn newest(folder: &Path, file: &str) -> io::Result<Option<PathBuf>> {
    let results = folder.join("results");
    let runs = entries(&results)?.into_iter().rev().filter(|run| run.ends_with("-quiet"));
    Ok(runs.map(|run| results.join(run).join(file)).find(|path| path.is_file()))
}

fn markdown(folder: &Path, table: &Value) -> io::Result<String> {
    let texts = |value: &Value| -> Vec<String> {
        let cells = value.as_array().into_iter().flatten();
        cells.map(|cell| cell.as_str().unwrap_or_default().to_owned()).collect()
    };
    let heads = texts(&table["heads"]);
    let mut markdown =
        format!("\n| {} |\n| --- |{}\n", heads.join(" | "), " ---: |".repeat(heads.len() - 1));
    let mut labels = Vec::new();
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for row in table["rows"].as_array().into_iter().flatten() {
        let row = texts(row);
        labels.push(row[0].clone());
        let cells = row[1..].iter().map(|cell| Cell::new(folder, cell));
        rows.push(cells.collect::<io::Result<_>>()?);
    }
    let mut origins: Vec<_> = rows.iter().flatten().filter_map(Cell::origin).collect();
    origins.sort_unstable();
    origins.dedup();
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
    let _ = writeln!(markdown, "\nMeasured on {}.", origins.join("; on "));
    Ok(markdown)
}

enum Cell {
    Text(String),
    Figure { value: f64, unit: String, origin: String },
}

impl Cell {
    fn new(folder: &Path, spec: &str) -> io::Result<Self> {
        if let Some(text) = spec.strip_prefix('=') {
            return Ok(Self::Text(text.to_owned()));
        }
        let missing = || wrong(&format!("no result has: {spec}"));
        let words: Vec<&str> = spec.splitn(6, ' ').collect();
        let [bench, system, metric, stat, size, variant @ ..] = words.as_slice() else {
            return Err(wrong(&format!("not a figure: {spec}")));
        };
        let path = newest(folder, &format!("{bench}.json"))?.ok_or_else(missing)?;
        let report = parse(&path)?;
        let is_it = |row: &&Value| {
            row["system"] == *system
                && row["metric"] == *metric
                && row["stat"] == *stat
                && (*size == "*" || row["size_bytes"].as_u64() == size.parse().ok())
                && row["variant"].as_str() == variant.first().copied()
        };
        let row =
            report["rows"].as_array().into_iter().flatten().find(is_it).ok_or_else(missing)?;
        let value = row["value"].as_f64().ok_or_else(missing)?;
        let unit = row["unit"].as_str().unwrap_or_default().to_owned();
        Ok(Self::Figure { value, unit, origin: origin::describe(&report) })
    }

    fn origin(&self) -> Option<String> {
        match self {
            Self::Text(_) => None,
            Self::Figure { origin, .. } => Some(origin.clone()),
        }
    }

    /// The less the better.
    fn cost(&self) -> Option<f64> {
        match self {
            Self::Text(_) => None,
            Self::Figure { value, unit, .. } if unit == "ratio" || unit == "1/s" => Some(-value),
            Self::Figure { value, .. } => Some(*value),
        }
    }

    fn told(&self, best: Option<f64>) -> String {
        let told = match self {
            Self::Text(text) => return text.clone(),
            Self::Figure { value, unit, .. } if unit == "ratio" => {
                format!("{:.0} %", value * 100.0)
            }
            Self::Figure { value, unit, .. } => units::human(*value, unit),
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
        let error = fill(&root, "<!-- figures nothing --><!-- end -->").unwrap_err();
        assert!(error.to_string().contains("no figure nothing"), "{error}");
        let error = Cell::new(&root, "cow cowslip no_such_metric p50 -").err().unwrap();
        assert!(error.to_string().contains("no_such_metric"), "{error}");
        assert_eq!(fill(&root, "no table").unwrap(), "no table");
        let error = fill(&root, "a\n<!-- figures empty_fork -->?<!-- end -->").unwrap_err();
        assert!(error.to_string().contains("begins a line"), "{error}");
    }

    #[test]
    fn the_best_of_a_row_is_bold() {
        let cell = |value, unit: &str| {
            let (unit, origin) = (unit.to_owned(), String::new());
            Cell::Figure { value, unit, origin }
        };
        assert_eq!(cell(2.5e6, "ns").told(Some(2.5e6)), "**2.50 ms**");
        assert_eq!(cell(2.5e6, "ns").told(Some(1e6)), "2.50 ms");
        assert_eq!(cell(1.0, "ratio").told(Some(-1.0)), "**100 %**");
    }

    /// `cowslip-bench report` was forgotten if this fails.
    #[test]
    fn pages_have_the_figures_of_the_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let benchmarks = root.join("benchmarks");
        for page in PAGES {
            let text = fs::read_to_string(root.join(page)).unwrap();
            assert!(text.contains(BEGIN), "{page}");
            assert_eq!(fill(&benchmarks, &text).unwrap(), text, "{page}");
        }
        if let Some(picture) = picture(&benchmarks).unwrap() {
            assert_eq!(fs::read(root.join(PICTURE.1)).unwrap(), picture);
        }
    }
}

//! The results of many runs as one page in Markdown: each promise, its results, and whether it holds.
//!
//! ```text
//! FOLDER/results/2026-11-22-epyc-quiet/cow.json    of `cowslip-bench cow --json`; its host had nothing else to do
//! FOLDER/results/2026-11-23-epyc-busy/cow.json     it had
//! FOLDER/reasons.json                              {"name of a promise": "why it is missed"}
//! ```
//! The newest result of a quiet host counts, and the worst of all busy ones. Bounds are those of
//! this program.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use cowslip_sys::error::io_kind;
use serde_json::Value;

use crate::promise::Bound;
use crate::promises::BENCHES;
use cowslip_report::units;

use super::origin;

/// A file of results.
pub(super) struct Run {
    /// The folder's name: the results in it belong together.
    folder: String,
    pub(super) is_quiet: bool,
    pub(super) report: Value,
}

impl Run {
    /// The promise of this name, if the bench of this run has it.
    fn ratio(&self, name: &str) -> Option<&Value> {
        self.report["ratios"].as_array()?.iter().find(|ratio| ratio["name"] == name)
    }
}

/// A value of a promise.
#[derive(Clone, Debug)]
struct Measured {
    value: f64,
    is_fit: bool,
    /// Machine, commit and date.
    origin: String,
    /// The commit that was measured.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test asks how old it is"))]
    commit: Option<String>,
}

impl Measured {
    fn from_run(run: &Run, name: &str) -> Option<Self> {
        let ratio = run.ratio(name)?;
        let is_fit = ratio["host_fit"].as_bool().unwrap_or(true);
        let origin = origin::describe(&run.report);
        let commit = run.report["machine"]["commit"].as_str().map(str::to_owned);
        Some(Self { value: ratio["value"].as_f64()?, is_fit, origin, commit })
    }

    /// The value, with a mark if the host was unfit.
    fn told(&self) -> String {
        units::human(self.value, "") + if self.is_fit { "" } else { " ‡" }
    }
}

/// All results of a promise.
struct Results {
    bound: Bound,
    quiet: Option<Measured>,
    busy: Vec<Measured>,
}

impl Results {
    fn new(runs: &[Run], name: &str, bound: Bound) -> Self {
        let having = |is_quiet| {
            let runs = runs.iter().filter(move |run| run.is_quiet == is_quiet);
            runs.filter(|run| run.ratio(name).is_some())
        };
        let measured = |run| Measured::from_run(run, name);
        // An older value does not stand for one that the newest results lack. A bench may have several files there.
        let newest = having(true).next_back().map(|run| &run.folder);
        let quiet =
            having(true).filter(|run| Some(&run.folder) == newest).filter_map(measured).next_back();
        Self { bound, quiet, busy: having(false).filter_map(measured).collect() }
    }

    fn holds(&self, measured: &Measured) -> bool {
        self.bound.excess(measured.value) <= 0.0
    }

    fn worst(&self) -> Option<&Measured> {
        let excess = |measured: &&Measured| self.bound.excess(measured.value);
        self.busy.iter().max_by(|a, b| excess(a).total_cmp(&excess(b)))
    }

    fn status(&self) -> &'static str {
        if self.quiet.as_ref().is_some_and(|quiet| !quiet.is_fit) {
            return "host unfit";
        }
        let quiet = self.quiet.as_ref().map(|quiet| self.holds(quiet));
        match (quiet, self.worst().map(|worst| self.holds(worst))) {
            (Some(false), _) => "misses",
            (Some(true) | None, Some(false)) => "misses when busy",
            (Some(true), _) => "holds",
            (None, Some(true)) => "holds when busy",
            (None, None) => "not measured",
        }
    }
}

/// Reads the results in `folder`, and returns the page.
///
/// # Errors
/// Errors of the file system; [`io::ErrorKind::InvalidData`] for a file that is no result, with its name.
pub fn markdown(folder: &Path) -> io::Result<String> {
    let reasons = parse(&folder.join("reasons.json"))?;
    Ok(page(&runs(folder)?, &reasons))
}

/// All results, the newest last.
pub(super) fn runs(folder: &Path) -> io::Result<Vec<Run>> {
    let results = folder.join("results");
    let mut runs = Vec::new();
    for name in entries(&results)? {
        let is_json = |file: &String| file.ends_with(".json");
        for file in entries(&results.join(&name))?.into_iter().filter(is_json) {
            let report = parse(&results.join(&name).join(file))?;
            runs.push(Run { folder: name.clone(), is_quiet: name.ends_with("-quiet"), report });
        }
    }
    Ok(runs)
}

fn page(runs: &[Run], reasons: &Value) -> String {
    let mut page = String::from(
        "# Benchmarks\n\nWritten by `cowslip-bench report` from [benchmarks/results](benchmarks/results): do not edit it. \
         The systems of a\n[ratio](SPECIFICATION.md#speed) took turns in one run. \"Quiet\" is the newest run on a host \
         with nothing else to do.\n",
    );
    let has_busy = runs.iter().any(|run| !run.is_quiet);
    if has_busy {
        page.push_str("\"Busy\" is the worst of those on a host that had, \"of\" their number.\n");
    }
    let (heads, rules) =
        if has_busy { (" busy, worst | of |", " ---: | ---: |") } else { ("", "") };
    let (mut notes, mut has_unfit) = (String::new(), false);
    for (bench, promises) in BENCHES {
        let results =
            promises.iter().map(|promise| Results::new(runs, promise.name, promise.bound));
        let results: Vec<_> = results.collect();
        let _ = writeln!(page, "\n## `cowslip-bench {bench}`\n");
        for (kind, origins) in
            [("Quiet", origins(&results, true)), ("Busy", origins(&results, false))]
        {
            origins.iter().for_each(|origin| _ = writeln!(page, "{kind}: {origin}.\n"));
        }
        let _ = writeln!(
            page,
            "| ratio | promise | quiet |{heads} status |\n| --- | --- | ---: |{rules} --- |"
        );
        for (promise, results) in promises.iter().zip(&results) {
            let name = promise.name;
            let value =
                |measured: Option<&Measured>| measured.map(Measured::told).unwrap_or_default();
            let [quiet, worst] = [value(results.quiet.as_ref()), value(results.worst())];
            has_unfit |= [&quiet, &worst].iter().any(|told| told.contains('‡'));
            let status = results.status();
            let mark = match reasons[name].as_str() {
                Some(reason) if status.starts_with("misses") => {
                    let _ = writeln!(notes, "[^{name}]: {reason}");
                    format!("[^{name}]")
                }
                _ => String::new(),
            };
            let count = results.busy.len();
            let busy = if has_busy { format!(" {worst} | {count} |") } else { String::new() };
            let bound = results.bound;
            let _ = writeln!(page, "| `{name}`{mark} | {bound} | {quiet} |{busy} {status} |");
        }
    }
    if has_unfit {
        page.push_str("\n‡ The host took processor time or free memory back meanwhile: the value counts for nothing.\n");
    }
    if !notes.is_empty() {
        let _ = write!(page, "\n{notes}");
    }
    page
}

/// The machines, commits and dates of all values that a page shows, each once.
fn origins(results: &[Results], is_quiet: bool) -> Vec<&str> {
    let shown = results.iter().flat_map(|results| match is_quiet {
        true => results.quiet.as_slice(),
        false => results.busy.as_slice(),
    });
    let mut origins = Vec::new();
    for measured in shown {
        if !origins.contains(&measured.origin.as_str()) {
            origins.push(&measured.origin);
        }
    }
    origins
}

/// The names in a folder, in order.
pub(super) fn entries(folder: &Path) -> io::Result<Vec<String>> {
    let explain = |error: io::Error| {
        io::Error::new(io_kind(&error), format!("cannot read {}: {error}", folder.display()))
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(explain)? {
        names.push(entry.map_err(explain)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

pub(super) fn parse(path: &Path) -> io::Result<Value> {
    let explain = |kind, error: &dyn std::fmt::Display| {
        io::Error::new(kind, format!("{}: {error}", path.display()))
    };
    let bytes = fs::read(path).map_err(|error| explain(io_kind(&error), &error))?;
    serde_json::from_slice(&bytes).map_err(|error| explain(io::ErrorKind::InvalidData, &error))
}

#[cfg(test)]
mod tests;

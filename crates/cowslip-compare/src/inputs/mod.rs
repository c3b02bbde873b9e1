//! Runs from files. The content of a file tells its format.

mod criterion;
mod csv;
mod google_benchmark;
mod hyperfine;
mod perf_stat;
mod pytest_benchmark;
mod recording;
mod run;
mod sadf;
mod untyped;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use run::{Growth, Metric, Run, WALL};
pub(crate) use untyped::find_counters;

use crate::{Error, ErrorKind, Result};

/// Files are read whole.
const LARGEST_BYTES: u64 = 1 << 30;

/// A benchmark of a file that may have several.
#[derive(Clone, PartialEq, Debug)]
pub struct Benchmark {
    /// Its name in the file; empty if the file has only one, without a name.
    pub name: String,
    /// Its runs.
    pub runs: Vec<Run>,
}

/// The runs in a file, or in all files of a directory, in the order of their names.
///
/// `FILE@2` is the second command of a hyperfine file, the second benchmark of other tools, or the second host of sadf.
pub fn read(path: &Path) -> Result<Vec<Run>> {
    select(path, |path, part| {
        if !path.is_dir() {
            return parse(&read_text(path)?, &name_of(path), part).map_err(|error| error.on(path));
        }
        let benchmarks = criterion::folder(path)?;
        if !benchmarks.is_empty() {
            return chosen(benchmarks, part).map_err(|error| error.on(path));
        }
        if part.is_some() {
            return Err(Error::usage("it is a directory of runs").on(path));
        }
        let mut runs = Vec::new();
        for file in files(path)? {
            let read = parse(&read_text(&file)?, &name_of(&file), None);
            runs.extend(read.map_err(|error| error.on(&file)).map_err(
                |error| match error.kind() {
                    ErrorKind::Corrupt => error.and("every file of a directory is taken for runs"),
                    _ => error,
                },
            )?);
        }
        Ok(runs)
    })
}

/// All benchmarks in a file or a folder of criterion's; a file of anything else is one. `FILE@2` is the second one.
pub fn read_benchmarks(path: &Path) -> Result<Vec<Benchmark>> {
    select(path, |path, part| {
        let all = match path.is_dir() {
            true => criterion::folder(path)?,
            false => {
                benchmarks(&read_text(path)?, &name_of(path)).map_err(|error| error.on(path))?
            }
        };
        match part {
            None if all.is_empty() => {
                Ok(vec![Benchmark { name: String::new(), runs: read(path)? }])
            }
            None => Ok(all),
            Some(_) => Ok(vec![Benchmark { name: String::new(), runs: chosen(all, part)? }]),
        }
    })
}

/// Reads `FILE`, or the chosen part of `FILE@2`.
fn select<T>(path: &Path, read: impl Fn(&Path, Option<usize>) -> Result<T>) -> Result<T> {
    let selected = || {
        let (file, part) = path.to_str()?.rsplit_once('@')?;
        Some((PathBuf::from(file), part.parse().ok()?))
    };
    match selected().filter(|_| !path.exists()) {
        Some((file, part)) => read(&file, Some(part)),
        None => read(path, None),
    }
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("read the directory", directory, &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_hidden =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.is_file() && !is_hidden {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Error::usage(format!("{}: no files in this directory", directory.display())));
    }
    Ok(files)
}

fn read_text(path: &Path) -> Result<String> {
    let failed = |error| Error::io("read", path, &error);
    if fs::metadata(path).map_err(failed)?.len() > LARGEST_BYTES {
        return Err(Error::usage("it is larger than 1 GiB").on(path));
    }
    let bytes = fs::read(path).map_err(failed)?;
    String::from_utf8(bytes).map_err(|_| unknown("it is no text").on(path))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The runs in a text, with names from `name`; `part` chooses one of several, from 1.
///
/// ```
/// let runs = cowslip_compare::inputs::parse("faults,seconds\n3,0.5\n5,0.7\n", "a.csv", None)?;
/// assert_eq!(runs[0].metrics["faults"].value(), 4.0);
/// # Ok::<(), cowslip_compare::Error>(())
/// ```
pub fn parse(text: &str, name: &str, part: Option<usize>) -> Result<Vec<Run>> {
    let text = text.trim_start_matches('\u{feff}');
    let is_comment = |line: &&str| line.starts_with('#') || line.trim().is_empty();
    let first = text.lines().find(|line| !is_comment(line)).unwrap_or_default();
    if text.contains('\0') {
        return Err(unknown("it is no text"));
    }
    let is_markup = |kind: &&str| {
        let beginning = first.trim_start().get(..kind.len());
        beginning.is_some_and(|text| text.eq_ignore_ascii_case(kind))
    };
    if ["<!doctype", "<html", "<?xml"].iter().any(is_markup) {
        return Err(unknown("it begins as HTML or XML does"));
    }
    if !first.trim_start().starts_with('{') {
        return one(csv::parse(text, name)?, part);
    }
    if let Ok(line) = serde_json::from_str::<Value>(first) {
        if line.get("start").is_some_and(|start| start.get("schema").is_some()) {
            return one(recording::parse(text, name)?, part);
        }
        if line.get("counter-value").is_some() {
            return perf_stat::parse(text, name);
        }
    }
    let whole: Value = serde_json::from_str(text)
        .map_err(|error| Error::corrupt(format!("it begins as JSON and is none: {error}")))?;
    match whole.get("sysstat").and_then(|sysstat| sysstat.get("hosts")) {
        Some(hosts) => sadf::parse(hosts, name, part),
        None => chosen(of_tool(&whole, name)?, part),
    }
}

/// The benchmarks of a file that has them; none for any other text.
fn benchmarks(text: &str, name: &str) -> Result<Vec<Benchmark>> {
    let whole: Result<Value, _> = serde_json::from_str(text);
    match whole.ok().filter(|whole| whole.is_object() && whole.get("start").is_none()) {
        Some(whole) if whole.get("sysstat").is_none() && whole.get("counter-value").is_none() => {
            of_tool(&whole, name)
        }
        _ => Ok(Vec::new()),
    }
}

fn of_tool(whole: &Value, name: &str) -> Result<Vec<Benchmark>> {
    let one = |runs| vec![Benchmark { name: String::new(), runs }];
    if let Some(results) = whole.get("results") {
        return hyperfine::parse(results, name);
    }
    if whole.get("machine_info").is_some() {
        return pytest_benchmark::parse(whole, name);
    }
    if whole.get("context").is_some() && whole.get("benchmarks").is_some() {
        return google_benchmark::parse(whole, name);
    }
    if criterion::is_sample(whole) {
        return criterion::sample(whole, name).map(one);
    }
    match criterion::is_estimates(whole) {
        true => Ok(one(criterion::estimates(whole, name))),
        false => Err(unknown("its JSON is of another kind")),
    }
}

fn chosen(benchmarks: Vec<Benchmark>, part: Option<usize>) -> Result<Vec<Run>> {
    choose(&benchmarks, part, "benchmark").map(|benchmark| benchmark.runs.clone())
}

fn one(run: Run, part: Option<usize>) -> Result<Vec<Run>> {
    match part {
        None | Some(1) => Ok(vec![run]),
        Some(_) => Err(Error::usage("it is one run")),
    }
}

/// The chosen one of `all`, or the only one.
fn choose<'a, T>(all: &'a [T], part: Option<usize>, what: &str) -> Result<&'a T> {
    let index = match (part, all.len()) {
        (Some(part), _) => part.checked_sub(1),
        (None, 0 | 1) => Some(0),
        (None, many) => {
            let message = format!("it has {many} {what}s; say which: FILE@1 … FILE@{many}");
            return Err(Error::usage(message));
        }
    };
    index
        .and_then(|index| all.get(index))
        .ok_or_else(|| Error::usage(format!("it has {} {what}s", all.len())))
}

fn unknown(why: &str) -> Error {
    Error::corrupt(format!(
        "neither a recording of cowslip, nor of `sadf -j`, `perf stat -j`, `hyperfine --export-json`, pytest-benchmark, \
         Google Benchmark or criterion, nor CSV with a header: {why}"
    ))
}

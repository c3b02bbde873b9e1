//! Runs from files. The content of a file tells its format.

mod asv;
mod bencher;
mod benchmark_dotnet;
mod collect;
mod criterion;
mod csv;
mod fio;
mod github_action;
mod go_bench;
mod go_test;
mod google_benchmark;
mod hyperfine;
mod iostat;
mod jmh;
mod json;
mod k6;
mod perf_csv;
mod perf_stat;
mod pidstat;
mod prometheus;
mod pyperf;
mod pytest_benchmark;
mod recording;
mod report;
mod run;
mod sadf;
mod sar;
mod sysstat_text;
mod time;
mod units;
mod untyped;
mod vegeta;
mod vmstat;
mod wrk;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

pub use run::{Growth, Metric, Run, WALL};
pub(crate) use untyped::{Growing, find_counters};

use crate::{Error, ErrorKind, Result};

/// Files are read whole.
const LARGEST_BYTES: u64 = 1 << 30;
/// A beginning that tells text from anything else.
const FIRST_BYTES: u64 = 1 << 16;

/// A benchmark of a file that may have several.
#[derive(Clone, PartialEq, Debug)]
pub struct Benchmark {
    /// Its name in the file; empty if the file has only one, without a name.
    pub name: String,
    /// Its runs.
    pub runs: Vec<Run>,
}

/// Rows of a table: those with a value in a column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Where {
    /// The column, by its head.
    pub column: String,
    /// The text in it.
    pub value: String,
}

/// The runs in a file, or in all files of a directory, in the order of their names.
///
/// `FILE@2` is the second command of a hyperfine file, the second benchmark of other tools, or the second host of sadf.
pub fn read(path: &Path) -> Result<Vec<Run>> {
    read_where(path, &[])
}

/// Like [`read`], with those rows of tables that have all the wanted values.
pub fn read_where(path: &Path, wanted: &[Where]) -> Result<Vec<Run>> {
    select(path, |path, part| {
        let parse = |text: &str, name: &str, part| parse_where(text, name, part, wanted);
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
        let mut files = files(path)?;
        let copies = csv::locust::take_out_copies(&mut files);
        for file in files {
            let read = read_text(&file).and_then(|text| {
                parse(&text, &name_of(&file), None).map_err(|error| error.on(&file))
            });
            runs.extend(read.map_err(|error| match error.kind() {
                ErrorKind::Corrupt => error.and("every file of a directory is taken for runs"),
                _ => error,
            })?);
        }
        if let Some(first) = runs.first_mut() {
            let reason = "the same run as in Locust's `_stats.csv`";
            first
                .left_out
                .extend(copies.iter().map(|file| format!("`{}` ({reason})", name_of(file))));
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
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // Devices have no length, and some have no end.
    file.by_ref().take(FIRST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    text(&bytes).map_err(|error| error.on(path))?;
    file.take(LARGEST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST_BYTES {
        return Err(Error::usage("it is larger than 1 GiB").on(path));
    }
    text(&bytes)
        .and_then(|text| match text {
            Some(text) => Ok(text),
            None => String::from_utf8(bytes).map_err(|_| unknown("it is no text")),
        })
        .map_err(|error| error.on(path))
}

/// The text of UTF-16, as PowerShell writes it; `None` for that of UTF-8.
fn text(bytes: &[u8]) -> Result<Option<String>> {
    let unit = match bytes {
        [0xff, 0xfe, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] => u16::from_be_bytes,
        // The magic number of sysstat, in the order of bytes of either kind of machine.
        [0x96, 0xd5, ..] | [0xd5, 0x96, ..] if bytes.contains(&0) => {
            return Err(Error::corrupt(
                "it is a data file of sar; write it as text: `sadf -j FILE -- -A`, or `sar -A -f FILE`",
            ));
        }
        _ if bytes.contains(&0) => return Err(unknown("it is no text")),
        _ => return Ok(None),
    };
    let units = bytes[2..].chunks_exact(2).map(|two| unit([two[0], two[1]]));
    Ok(Some(
        char::decode_utf16(units).map(|next| next.unwrap_or(char::REPLACEMENT_CHARACTER)).collect(),
    ))
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
    parse_where(text, name, part, &[])
}

fn parse_where(text: &str, name: &str, part: Option<usize>, wanted: &[Where]) -> Result<Vec<Run>> {
    let all = benchmarks(text, name)?;
    match (all.is_empty(), wanted.first()) {
        (true, _) => one(csv::parse(text.trim_start_matches('\u{feff}'), name, wanted)?, part),
        (false, None) => chosen(all, part),
        (false, Some(Where { column, .. })) => {
            Err(Error::usage(format!("it is no table with a column `{column}`")))
        }
    }
}

/// The benchmarks of JSON or a report; none for a text that can only be a table.
fn benchmarks(text: &str, name: &str) -> Result<Vec<Benchmark>> {
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
    match json::is_json(first) {
        true => json::parse(text, first, name),
        false => report::parse(text, name).unwrap_or_else(|| Ok(Vec::new())),
    }
}

/// The runs of the chosen benchmark, or of the only one.
fn chosen(benchmarks: Vec<Benchmark>, part: Option<usize>) -> Result<Vec<Run>> {
    let all = benchmarks.len();
    let index = match part {
        Some(part) => part.checked_sub(1),
        None if all > 1 => {
            let message = format!("it has {all} benchmarks; say which: FILE@1 … FILE@{all}");
            return Err(Error::usage(message));
        }
        None => Some(0),
    };
    let chosen = index.and_then(|index| benchmarks.into_iter().nth(index));
    chosen
        .map(|benchmark| benchmark.runs)
        .ok_or_else(|| Error::usage(format!("it has {all} benchmarks")))
}

fn one(run: Run, part: Option<usize>) -> Result<Vec<Run>> {
    match part {
        None | Some(1) => Ok(vec![run]),
        Some(_) => Err(Error::usage("it is one run")),
    }
}

fn unknown(why: &str) -> Error {
    Error::corrupt(format!(
        "neither a recording of cowslip, nor of sar, sadf, iostat, mpstat, pidstat, vmstat, `perf stat -j` or `-x`, a \
         range of Prometheus, a result of hyperfine, pytest-benchmark, pyperf, asv, Google Benchmark, criterion, JMH, \
         BenchmarkDotNet, `go test -bench`, bencher, github-action-benchmark, fio, k6, vegeta or wrk, nor CSV with a \
         header: {why}"
    ))
}

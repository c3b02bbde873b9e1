//! Text of `go test -bench`: each line of a benchmark is a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::collect::{Benchmarks, clipped};
use super::units::number;
use super::{Benchmark, Run, WALL};
use crate::{Error, Result};

/// Lines about the machine, and the facts in them.
const FACTS: [(&str, &str); 3] = [("goos:", "goos"), ("goarch:", "goarch"), ("cpu:", "cpu.model")];

/// A result, such as `BenchmarkSort/64-8 1000 1234 ns/op 16 B/op`.
struct Line<'a> {
    package: &'a str,
    name: &'a str,
    measures: Vec<&'a str>,
    /// The index of the facts above it.
    section: usize,
}

/// True for a text with a result.
pub(super) fn is_report(text: &str) -> bool {
    text.lines().any(|line| result(line).is_some())
}

pub(super) fn parse(text: &str, file: &str) -> Result<Vec<Benchmark>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let (mut package, mut sections) = ("", vec![BTreeMap::new()]);
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("pkg:") {
            package = clipped(named.trim());
        }
        for (prefix, fact) in FACTS {
            let Some(value) = line.strip_prefix(prefix) else { continue };
            let mut section = sections.pop().unwrap_or_default();
            if lines.last().is_some_and(|line| line.section == sections.len()) {
                sections.push(section.clone());
            }
            section.insert(fact.to_owned(), clipped(value.trim()).to_owned());
            sections.push(section);
        }
        if let Some((name, measures)) = result(line) {
            lines.push(Line { package, name, measures, section: sections.len() - 1 });
        }
    }
    if lines.is_empty() {
        return Err(Error::corrupt(
            "the output of `go test` has no result of a benchmark; run it with -bench .",
        ));
    }
    let has_packages = lines.iter().any(|line| line.package != lines[0].package);
    let processors = processors(&lines);
    for section in &mut sections {
        section.extend(processors.map(|count| ("cpu.count".to_owned(), count.to_owned())));
    }
    let facts: Vec<Arc<BTreeMap<String, String>>> = sections.into_iter().map(Arc::new).collect();
    let mut all = Benchmarks::default();
    for line in &lines {
        let run = Run { facts: Arc::clone(&facts[line.section]), ..run(line)? };
        let suffix = processors.and_then(|_| line.name.rsplit_once('-'));
        let name = suffix.map_or(line.name, |(name, _)| name);
        match has_packages {
            true => all.add(&format!("{}.{name}", line.package), file, [run]),
            false => all.add(name, file, [run]),
        }
    }
    Ok(all.into_vec())
}

/// The name, and values with their units.
fn result(line: &str) -> Option<(&str, Vec<&str>)> {
    let mut words = line.strip_prefix("Benchmark").map(|_| line.split_whitespace())?;
    let (name, iterations) = (words.next()?, words.next()?);
    iterations.parse::<u64>().ok()?;
    let measures: Vec<&str> = words.collect();
    (measures.len() >= 2).then_some((name, measures))
}

/// The number of processors behind the names, if all names have the same one.
fn processors<'a>(lines: &[Line<'a>]) -> Option<&'a str> {
    let suffix = |line: &Line<'a>| {
        let (_, suffix) = line.name.rsplit_once('-')?;
        suffix.parse::<u16>().ok().map(|_| suffix)
    };
    let suffixes: Option<BTreeSet<&str>> = lines.iter().map(suffix).collect();
    suffixes.filter(|suffixes| suffixes.len() == 1)?.pop_first()
}

fn run(line: &Line<'_>) -> Result<Run> {
    let mut run = Run::default();
    for measure in line.measures.chunks(2) {
        let [value, unit] = measure[..] else { break };
        let Some(value) = number(value) else {
            let (name, value) = (clipped(line.name), clipped(value));
            return Err(Error::corrupt(format!("{value} {unit} of {name} is no number")));
        };
        match unit {
            "ns/op" => run.add_value(WALL, Some(value / 1e9)),
            _ => run.add_value(unit, Some(value)),
        }
    }
    Ok(run)
}

//! `perf stat -j`: JSON Lines, a line an event; with `-I` a line an event and interval.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::mem;

use serde::Deserialize;
use serde_json::Value;

use super::collect::unnamed;
use super::json::from_json;
use super::units::number;
use super::{Benchmark, Metric, Run};
use crate::{Error, Result};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Line {
    /// Seconds since the start, at the end of the interval.
    interval: Option<f64>,
    counter_value: String,
    #[serde(default)]
    unit: String,
    event: String,
    /// Only with `-A`.
    cpu: Option<String>,
}

/// The count of an event.
pub(super) struct Count {
    /// The name of the event, its unit, and its processor.
    pub(super) name: String,
    /// Seconds since the start, at the end of the interval; `None` is the whole run.
    pub(super) end: Option<f64>,
    /// `None` if it was not counted or is not supported.
    pub(super) value: Option<f64>,
}

impl Count {
    /// The name of a metric, such as `task-clock_msec.cpu0`.
    pub(super) fn name(event: &str, unit: &str, place: Option<&str>) -> String {
        let mut name = event.to_owned();
        if !unit.is_empty() {
            name += &format!("_{unit}");
        }
        if let Some(place) = place {
            name += &format!(".{place}");
        }
        name
    }
}

/// One run.
#[derive(Default)]
struct Counts {
    /// For each event the ends of the intervals and the counts in them; `None` is the whole run.
    events: BTreeMap<String, Vec<(Option<f64>, f64)>>,
    /// The ends of the intervals, ascending.
    ends: Vec<f64>,
}

/// True for the first line of such a file.
pub(super) fn is_count(line: &Value) -> bool {
    line.get("counter-value").is_some()
}

pub(super) fn parse(text: &str, name: &str) -> Result<Vec<Benchmark>> {
    runs(text, name, |line| -> serde_json::Result<Count> {
        let line: Line = from_json(line)?;
        let cpu = line.cpu.map(|cpu| format!("cpu{cpu}"));
        Ok(Count {
            name: Count::name(&line.event, &line.unit, cpu.as_deref()),
            end: line.interval,
            // `<not counted>` and `<not supported>` are no counts.
            value: number(&line.counter_value),
        })
    })
}

/// Splits the text into runs. A comment begins another run, as does an event that comes again, or an interval before
/// the last one (`--append`).
pub(super) fn runs<E: Display>(
    text: &str,
    name: &str,
    count: impl Fn(&str) -> Result<Count, E>,
) -> Result<Vec<Benchmark>> {
    let mut runs: Vec<Counts> = Vec::new();
    let mut counts = Counts::default();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            runs.push(mem::take(&mut counts));
        }
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let count =
            count(line).map_err(|error| Error::corrupt(format!("line {}: {error}", index + 1)))?;
        let last = counts.ends.last().copied();
        let comes_again = match count.end {
            Some(end) => last.is_some_and(|last| end < last),
            None => counts.events.contains_key(&count.name),
        };
        if comes_again {
            runs.push(mem::take(&mut counts));
        }
        if count.end != counts.ends.last().copied() {
            counts.ends.extend(count.end);
        }
        if let Some(value) = count.value {
            counts.events.entry(count.name).or_default().push((count.end, value));
        }
    }
    runs.push(counts);
    runs.retain(|counts| !counts.events.is_empty());
    let number = |index: usize| match runs.len() {
        1 => name.to_owned(),
        _ => format!("{name}#{}", index + 1),
    };
    Ok(unnamed(
        runs.iter().enumerate().map(|(index, counts)| run(&number(index), counts)).collect(),
    ))
}

fn run(name: &str, Counts { events, ends }: &Counts) -> Run {
    let mut run = Run::new(name);
    for (event, counts) in events {
        if let [(None, value)] = counts[..] {
            run.add_value(event, Some(value));
            continue;
        }
        let steps = counts.iter().filter_map(|(end, count)| {
            let end = (*end)?;
            let before = ends.partition_point(|time| *time < end);
            let start = before.checked_sub(1).map_or(0.0, |index| ends[index]);
            Some((end - start, *count))
        });
        run.add_or_count(event, Metric::counts(steps));
    }
    run
}

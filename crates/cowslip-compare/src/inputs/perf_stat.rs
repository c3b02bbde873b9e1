//! `perf stat -j`: JSON Lines, a line an event; with `-I` a line an event and interval.

use std::collections::BTreeMap;
use std::mem;

use serde::Deserialize;

use super::{Metric, Run};
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

impl Line {
    fn name(&self) -> String {
        let mut name = self.event.clone();
        if !self.unit.is_empty() {
            name += &format!("_{}", self.unit);
        }
        if let Some(cpu) = &self.cpu {
            name += &format!(".cpu{cpu}");
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

/// Splits the text into runs. A comment begins another run, as does an event that comes again, or an interval before
/// the last one (`--append`).
pub(super) fn parse(text: &str, name: &str) -> Result<Vec<Run>> {
    let mut runs: Vec<Counts> = Vec::new();
    let mut counts = Counts::default();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            runs.push(mem::take(&mut counts));
        }
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(line)
            .map_err(|error| Error::corrupt(format!("line {}: {error}", index + 1)))?;
        let event = line.name();
        let last = counts.ends.last().copied();
        let comes_again = match line.interval {
            Some(end) => last.is_some_and(|last| end < last),
            None => counts.events.contains_key(&event),
        };
        if comes_again {
            runs.push(mem::take(&mut counts));
        }
        if line.interval != counts.ends.last().copied() {
            counts.ends.extend(line.interval);
        }
        // `<not counted>` and `<not supported>` are no counts.
        if let Ok(value) = line.counter_value.parse() {
            counts.events.entry(event).or_default().push((line.interval, value));
        }
    }
    runs.push(counts);
    runs.retain(|counts| !counts.events.is_empty());
    let number = |index: usize| match runs.len() {
        1 => name.to_owned(),
        _ => format!("{name}#{}", index + 1),
    };
    Ok(runs.iter().enumerate().map(|(index, counts)| run(&number(index), counts)).collect())
}

fn run(name: &str, Counts { events, ends }: &Counts) -> Run {
    let mut run = Run::new(name);
    for (event, counts) in events {
        if let [(None, value)] = counts[..] {
            run.add(event, Metric::levels(vec![value]));
            continue;
        }
        let steps = counts.iter().filter_map(|(end, count)| {
            let end = (*end)?;
            let before = ends.partition_point(|time| *time < end);
            let start = before.checked_sub(1).map_or(0.0, |index| ends[index]);
            Some((end - start, *count))
        });
        run.add(event, Metric::counts(steps));
    }
    run
}

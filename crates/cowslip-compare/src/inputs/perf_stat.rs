//! `perf stat -j`: JSON Lines, a line an event; with `-I` a line an event and interval.

use std::collections::BTreeMap;

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
    /// With `-A`.
    cpu: Option<String>,
}

/// Of each event the ends of the intervals and what was counted in them; `None` is the whole run.
type Counts = BTreeMap<String, Vec<(Option<f64>, f64)>>;

/// A comment begins another run, as does an event that comes again (`--append`).
pub(super) fn parse(text: &str, name: &str) -> Result<Vec<Run>> {
    let mut runs: Vec<Counts> = vec![Counts::new()];
    let mut ends: Vec<f64> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let counts = runs.last_mut().expect("there is one from the start");
        if line.starts_with('#') || line.trim().is_empty() {
            if line.starts_with('#') && !counts.is_empty() {
                runs.push(Counts::new());
            }
            continue;
        }
        let line: Line = serde_json::from_str(line)
            .map_err(|error| Error::corrupt(format!("line {}: {error}", index + 1)))?;
        ends.extend(line.interval);
        // `<not counted>` and `<not supported>` say nothing about how many there were.
        let Ok(value) = line.counter_value.parse() else { continue };
        let mut event = line.event;
        if !line.unit.is_empty() {
            event += &format!("_{}", line.unit);
        }
        if let Some(cpu) = line.cpu {
            event += &format!(".cpu{cpu}");
        }
        let again = line.interval.is_none() && counts.contains_key(&event);
        if again {
            runs.push(Counts::new());
        }
        let counts = runs.last_mut().expect("there is one from the start");
        counts.entry(event).or_default().push((line.interval, value));
    }
    ends.sort_by(f64::total_cmp);
    ends.dedup();
    runs.retain(|counts| !counts.is_empty());
    let number = |index: usize| match runs.len() {
        1 => name.to_owned(),
        _ => format!("{name}#{}", index + 1),
    };
    Ok(runs.iter().enumerate().map(|(index, counts)| run(&number(index), counts, &ends)).collect())
}

fn run(name: &str, counts: &Counts, ends: &[f64]) -> Run {
    let mut run = Run::new(name);
    for (event, counts) in counts {
        if let [(None, value)] = counts[..] {
            run.add(event, Metric::levels(vec![value]));
            continue;
        }
        let steps = counts.iter().filter_map(|(end, count)| {
            let end = (*end)?;
            let before = ends.partition_point(|it| *it < end);
            let start = before.checked_sub(1).map_or(0.0, |index| ends[index]);
            Some((end - start, *count))
        });
        run.add(&format!("{event}/s"), Metric::steps(steps));
    }
    run
}

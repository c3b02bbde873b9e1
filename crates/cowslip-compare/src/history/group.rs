//! The levels of the entries of one machine, the changes between them, and the change that the newest entries hold.

use std::collections::BTreeMap;

use serde::Serialize;

use super::change_points::change_points;
use super::detectable::smallest_step;
use super::drift::Drift;
use super::entry::Entry;
use super::settings::Settings;
use crate::inputs::{Run, WALL};
use crate::stats::{Autocorrelation, Estimate, Moments, Welch, median, relative_change};
use crate::{Cause, Options, TimeSplit, compare};

/// The number of newer entries after which a step is asked for; half of the level is the other.
const SOON: usize = 5;
/// More entries of a level hardly change the smallest step, and take time by their square.
const MOST_FOR_STEP: usize = 200;
/// Entries on each side of a change whose counters are compared.
const MOST_FOR_CAUSES: usize = 50;
/// One minus the confidence of the intervals.
const INTERVAL_ALPHA: f64 = 0.05;

/// The entries of one machine.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// The facts that its entries share, of those that separate machines.
    pub machine: BTreeMap<String, String>,
    /// The entries, in the order of the series.
    pub points: Vec<Point>,
    /// The levels between changes, in that order.
    pub levels: Vec<Level>,
    /// The changes: one fewer than the levels.
    pub changes: Vec<Change>,
    /// The change from the level before the newest entries to the last level, if there is one.
    pub newest: Option<Change>,
    /// The slow change that the newest entries hold, if there is one.
    pub drift: Option<Drift>,
    /// The smallest steps that the last level would have shown, and the numbers of entries after them; none if it is
    /// too short.
    pub smallest_steps: Vec<(usize, f64)>,
    /// The correlation of each entry with the one after it, if it makes false alarms more frequent.
    pub dependence: Option<f64>,
}

/// An entry.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Its number in the series, from 1.
    pub number: usize,
    /// Nanoseconds since 1970 UTC.
    pub time_unix_ns: u64,
    /// The commit, if it is known.
    pub commit: Option<String>,
    /// Its label.
    pub label: Option<String>,
    /// The median of its runs.
    pub value: f64,
    /// The number of its runs.
    pub runs: usize,
}

/// Entries without a change among them.
#[derive(Clone, Debug, Serialize)]
pub struct Level {
    /// The index of the first one.
    pub from: usize,
    /// The index after the last one.
    pub to: usize,
    /// The median of the entries.
    pub median: f64,
    /// The mean of the entries.
    pub mean: f64,
}

/// A change from one level to another.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The index of the first entry of the new level.
    pub at: usize,
    /// The probability of such a change in entries in random order.
    pub p: f64,
    /// The means of both levels.
    pub means: (f64, f64),
    /// The new mean over the old one, less one; `None` from zero.
    pub change: Option<Estimate>,
    /// Facts that changed with it: their names and values before and after.
    pub facts: BTreeMap<String, (Option<String>, Option<String>)>,
    /// The counters that explain a change of the wall time that matters, the best first.
    pub causes: Vec<Cause>,
}

/// An entry and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Valued<'a> {
    pub(super) number: usize,
    pub(super) entry: &'a Entry,
    /// The median of its runs.
    pub(super) value: f64,
    pub(super) runs: usize,
}

impl Group {
    /// Finds the changes in the entries of a machine; there is one or more.
    pub(super) fn new(
        machine: BTreeMap<String, String>,
        entries: &[Valued<'_>],
        metric: &str,
        settings: &Settings,
    ) -> Self {
        let values: Vec<f64> = entries.iter().map(|entry| entry.value).collect();
        let found = change_points(&values, settings.alpha);
        let ends = found.iter().map(|point| point.at).chain([values.len()]);
        let mut levels = Vec::new();
        let mut from = 0;
        for to in ends {
            levels.push(level(&values, from, to));
            from = to;
        }
        let change = |before: &Level, after: &Level, p: f64| {
            let [old, new] = [before, after].map(|level| &values[level.from..level.to]);
            let (last, first) = (entries[after.from - 1].entry, entries[after.from].entry);
            Change {
                at: after.from,
                p,
                means: (before.mean, after.mean),
                change: relative(old, new, INTERVAL_ALPHA),
                facts: changed_facts(last, first),
                causes: match metric {
                    WALL => causes(
                        &entries[before.from..before.to],
                        &entries[after.from..after.to],
                        settings.effect,
                    ),
                    _ => Vec::new(),
                },
            }
        };
        let changes: Vec<Change> = levels
            .windows(2)
            .zip(&found)
            .map(|(both, point)| change(&both[0], &both[1], point.p))
            .collect();
        let first_new = values.len().saturating_sub(settings.newest);
        let newest = found.iter().position(|point| point.at >= first_new).map(|first| {
            let last = changes.len() - 1;
            let (before, after) = (&levels[first], &levels[last + 1]);
            change(before, after, changes[last].p)
        });
        let last = &levels[levels.len() - 1];
        let residuals: Vec<f64> = levels
            .iter()
            .flat_map(|level| values[level.from..level.to].iter().map(|value| value - level.mean))
            .collect();
        let correlation = Autocorrelation::from_values(&residuals)
            .filter(|correlation| correlation.is_dependent(values.len()));
        let points = entries.iter().map(|entry| Point {
            number: entry.number,
            time_unix_ns: entry.entry.time_unix_ns,
            commit: entry.entry.commit.clone(),
            label: entry.entry.label.clone(),
            value: entry.value,
            runs: entry.runs,
        });
        Self {
            machine,
            points: points.collect(),
            drift: Drift::find(&values, &levels, settings),
            smallest_steps: smallest_steps(&values[last.from..last.to], settings.alpha),
            levels,
            changes,
            newest,
            dependence: correlation.map(|correlation| correlation.lag_one),
        }
    }
}

fn level(values: &[f64], from: usize, to: usize) -> Level {
    let part = &values[from..to];
    let mean = part.iter().sum::<f64>() / part.len() as f64;
    Level { from, to, median: median(part.iter().copied()).unwrap_or(mean), mean }
}

fn relative(old: &[f64], new: &[f64], alpha: f64) -> Option<Estimate> {
    let moments =
        Moments::from_values(old).and_then(|old| Ok((old, Moments::from_values(new)?))).ok()?;
    let (old, new) = moments;
    match Welch::new(&old, &new, alpha) {
        Ok(welch) => relative_change(&old, &new, &welch, alpha),
        Err(_) if old.mean() == 0.0 => None,
        Err(_) => {
            let value = (new.mean() - old.mean()) / old.mean().abs();
            Some(Estimate { value, interval: None })
        }
    }
}

/// The counters that explain a change of the wall time, by the entries next to it.
fn causes(old: &[Valued<'_>], new: &[Valued<'_>], effect: f64) -> Vec<Cause> {
    let runs = |entries: &[Valued<'_>]| -> Vec<Run> {
        entries.iter().map(|valued| valued.entry.median_run()).collect()
    };
    let old = runs(&old[old.len().saturating_sub(MOST_FOR_CAUSES)..]);
    let new = runs(&new[..new.len().min(MOST_FOR_CAUSES)]);
    let options = Options { alpha: INTERVAL_ALPHA, wanted_change: effect, ..Options::default() };
    let found = TimeSplit::from_runs(&old, &new, INTERVAL_ALPHA).and_then(|split| {
        Some(Cause::find(&compare(&old, &new, &options).ok()?, &split, None, effect))
    });
    found.unwrap_or_default()
}

fn changed_facts(
    last: &Entry,
    first: &Entry,
) -> BTreeMap<String, (Option<String>, Option<String>)> {
    let names = last.facts.keys().chain(first.facts.keys());
    let both = names.map(|name| {
        let values = [last, first].map(|entry| entry.facts.get(name).cloned());
        (name.clone(), values)
    });
    both.filter(|(_, [last, first])| last != first)
        .map(|(name, [last, first])| (name, (last, first)))
        .collect()
}

fn smallest_steps(level: &[f64], alpha: f64) -> Vec<(usize, f64)> {
    let level = &level[level.len().saturating_sub(MOST_FOR_STEP)..];
    let mean = level.iter().sum::<f64>() / level.len() as f64;
    let mut places = vec![SOON, level.len() / 2];
    places.dedup();
    let steps = places.into_iter().filter(|newer| 2 * newer <= level.len());
    let steps = steps.filter_map(|newer| Some((newer, smallest_step(level, newer, alpha)?)));
    steps
        .map(|(newer, step)| (newer, step / mean.abs()))
        .filter(|(_, step)| step.is_finite())
        .collect()
}

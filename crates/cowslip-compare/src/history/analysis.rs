//! The levels of a series, the changes between them, and the change that its newest entries hold.

use std::collections::BTreeMap;

use serde::Serialize;

use super::change_points::change_points;
use super::entry::{Entry, MACHINE};
use super::seen::smallest_step;
use super::store::Series;
use crate::comparison::WALL;
use crate::stats::{Autocorrelation, Estimate, Moments, Welch, median, relative_change};
use crate::{Error, Result};

/// The number of newer entries after which a step is asked for; half of the level is the other.
const SOON: usize = 5;
/// More entries of a level hardly change the smallest step, and take time by their square.
const MOST_FOR_STEP: usize = 200;

/// Options of an analysis.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The metric; by default [`WALL`], or the only one.
    pub metric: Option<String>,
    /// The share of series without a change that have a change point.
    pub alpha: f64,
    /// One minus the confidence of the intervals.
    pub interval_alpha: f64,
    /// The number of newest entries in which a change counts as new.
    pub newest: usize,
    /// Facts of [`MACHINE`] by which entries are not separated.
    pub ignored: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let (metric, ignored) = (None, Vec::new());
        Self { metric, alpha: 0.01, interval_alpha: 0.05, newest: 10, ignored }
    }
}

/// The analysis of a series.
#[derive(Clone, Debug, Serialize)]
pub struct History {
    /// The name of the series.
    pub name: String,
    /// The analysed metric.
    pub metric: String,
    /// Entries without that metric.
    pub left_out: usize,
    /// The entries of each machine, that of the newest entry first.
    pub groups: Vec<Group>,
}

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
}

/// Finds the changes of a metric in a series.
///
/// # Errors
/// The series lacks the metric, or has several and none is chosen.
pub fn analyse(series: &Series, settings: &Settings) -> Result<History> {
    let metric = metric(series, settings)?;
    let with: Vec<(usize, &Entry, f64)> = series
        .entries
        .iter()
        .enumerate()
        .filter_map(|(index, entry)| {
            let values = entry.metrics.get(&metric)?.iter().copied();
            let value = median(values.filter(|it| it.is_finite()))?;
            Some((index + 1, entry, value))
        })
        .collect();
    let mut machines: Vec<(BTreeMap<String, String>, Vec<(usize, &Entry, f64)>)> = Vec::new();
    for entry in with.iter().rev() {
        let machine = machine(entry.1, &settings.ignored);
        match machines.iter_mut().find(|(known, _)| *known == machine) {
            Some((_, entries)) => entries.insert(0, *entry),
            None => machines.push((machine, vec![*entry])),
        }
    }
    let left_out = series.entries.len() - with.len();
    let groups = machines.into_iter().map(|(machine, it)| group(machine, &it, settings, &metric));
    let groups = groups.collect();
    Ok(History { name: series.name.clone(), metric, left_out, groups })
}

fn metric(series: &Series, settings: &Settings) -> Result<String> {
    let mut names: Vec<&String> = series.entries.iter().flat_map(|it| it.metrics.keys()).collect();
    names.sort();
    names.dedup();
    let wanted = settings.metric.as_deref().unwrap_or(WALL);
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    match (names.as_slice(), &settings.metric) {
        (names, _) if names.contains(&wanted) => Ok(wanted.to_owned()),
        ([only], None) => Ok((*only).to_owned()),
        (names, _) => {
            let there = names.join(", ");
            Err(Error::usage(format!("{} has no metric {wanted}, but {there}", series.name)))
        }
    }
}

fn machine(entry: &Entry, ignored: &[String]) -> BTreeMap<String, String> {
    let separating = MACHINE.iter().filter(|name| !ignored.iter().any(|it| it == *name));
    let facts = separating.filter_map(|name| entry.facts.get_key_value(*name));
    facts.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn group(
    machine: BTreeMap<String, String>,
    entries: &[(usize, &Entry, f64)],
    settings: &Settings,
    metric: &str,
) -> Group {
    let values: Vec<f64> = entries.iter().map(|(_, _, value)| *value).collect();
    let found = change_points(&values, settings.alpha);
    let ends = found.iter().map(|it| it.at).chain([values.len()]);
    let mut levels = Vec::new();
    let mut from = 0;
    for to in ends {
        levels.push(level(&values, from, to));
        from = to;
    }
    let change = |before: &Level, after: &Level, p: f64| {
        let [old, new] = [before, after].map(|level| &values[level.from..level.to]);
        let (before_it, first) = (entries[after.from - 1].1, entries[after.from].1);
        Change {
            at: after.from,
            p,
            means: (before.mean, after.mean),
            change: relative(old, new, settings.interval_alpha),
            facts: changed_facts(before_it, first),
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
    let correlation = Autocorrelation::of(&residuals).filter(|it| it.is_dependent(values.len()));
    let points = entries.iter().map(|(number, entry, value)| Point {
        number: *number,
        time_unix_ns: entry.time_unix_ns,
        commit: entry.commit.clone(),
        label: entry.label.clone(),
        value: *value,
        runs: entry.metrics.get(metric).map_or(0, Vec::len),
    });
    Group {
        machine,
        points: points.collect(),
        smallest_steps: smallest_steps(&values[last.from..last.to], settings.alpha),
        levels,
        changes,
        newest,
        dependence: correlation.map(|it| it.lag_one),
    }
}

fn level(values: &[f64], from: usize, to: usize) -> Level {
    let part = &values[from..to];
    let mean = part.iter().sum::<f64>() / part.len() as f64;
    Level { from, to, median: median(part.iter().copied()).unwrap_or(mean), mean }
}

fn relative(old: &[f64], new: &[f64], alpha: f64) -> Option<Estimate> {
    let moments = Moments::of(old).and_then(|old| Ok((old, Moments::of(new)?))).ok()?;
    let (old, new) = moments;
    match Welch::of(&old, &new, alpha) {
        Ok(welch) => relative_change(&old, &new, &welch, alpha),
        Err(_) if old.mean() == 0.0 => None,
        Err(_) => {
            let value = (new.mean() - old.mean()) / old.mean().abs();
            Some(Estimate { value, interval: None })
        }
    }
}

fn changed_facts(
    before: &Entry,
    first: &Entry,
) -> BTreeMap<String, (Option<String>, Option<String>)> {
    let names = before.facts.keys().chain(first.facts.keys());
    let both = names.map(|name| {
        let values = [before, first].map(|entry| entry.facts.get(name).cloned());
        (name.clone(), values)
    });
    both.filter(|(_, [before, first])| before != first)
        .map(|(name, [before, first])| (name, (before, first)))
        .collect()
}

fn smallest_steps(level: &[f64], alpha: f64) -> Vec<(usize, f64)> {
    let level = &level[level.len().saturating_sub(MOST_FOR_STEP)..];
    let mean = level.iter().sum::<f64>() / level.len() as f64;
    let mut places = vec![SOON, level.len() / 2];
    places.dedup();
    let steps = places.into_iter().filter(|newer| 2 * newer <= level.len());
    let steps = steps.filter_map(|newer| Some((newer, smallest_step(level, newer, alpha)?)));
    steps.map(|(newer, step)| (newer, step / mean.abs())).filter(|it| it.1.is_finite()).collect()
}

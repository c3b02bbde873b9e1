//! The analysis of a series, separately for each machine.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::entry::{Entry, MACHINE};
use super::group::{Group, Valued};
use super::settings::Settings;
use super::store::Series;
use crate::inputs::WALL;
use crate::stats::median;
use crate::{Error, Result};

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

/// Finds the changes of a metric in a series.
///
/// # Errors
/// The series lacks the metric, or has several and none is chosen.
pub fn analyse(series: &Series, settings: &Settings) -> Result<History> {
    let metric = metric(series, settings)?;
    let values = series.entries.iter().enumerate().filter_map(|(index, entry)| {
        let runs = entry.metrics.get(&metric)?.iter().copied();
        let value = median(runs.filter(|run| run.is_finite()))?;
        let runs = entry.metrics[&metric].len();
        Some(Valued { number: index + 1, entry, value, runs })
    });
    let values: Vec<Valued<'_>> = values.collect();
    let mut machines: Vec<(BTreeMap<String, String>, Vec<Valued<'_>>)> = Vec::new();
    for value in &values {
        let machine = machine(value.entry, &settings.ignored);
        match machines.iter_mut().find(|(known, _)| *known == machine) {
            Some((_, values)) => values.push(*value),
            None => machines.push((machine, vec![*value])),
        }
    }
    let newest = |values: &[Valued<'_>]| values.last().map(|value| value.number);
    machines.sort_by_key(|(_, values)| Reverse(newest(values)));
    let left_out = series.entries.len() - values.len();
    let groups = machines
        .into_iter()
        .map(|(machine, values)| Group::new(machine, &values, &metric, settings));
    let groups = groups.collect();
    Ok(History { name: series.name.clone(), metric, left_out, groups })
}

fn metric(series: &Series, settings: &Settings) -> Result<String> {
    let mut names: Vec<&String> =
        series.entries.iter().flat_map(|entry| entry.metrics.keys()).collect();
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
    let separating = MACHINE.iter().filter(|name| !ignored.iter().any(|fact| fact == *name));
    let facts = separating.filter_map(|name| entry.facts.get_key_value(*name));
    facts.map(|(name, value)| (name.clone(), value.clone())).collect()
}

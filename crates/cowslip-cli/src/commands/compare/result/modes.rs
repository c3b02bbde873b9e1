//! Two modes within a side, and the counter that tells them apart.

use cowslip_compare::inputs::Run;
use cowslip_compare::stats::Modes;
use cowslip_compare::{Comparison, Row, Unit, Verdict, compare, is_consequence};
use serde::Serialize;

use super::Settings;
use super::format;
use super::words::name;

/// Runs of one side in two groups, by the primary metric.
#[derive(Debug, Serialize)]
pub(super) struct SideModes {
    side: &'static str,
    metric: String,
    #[serde(flatten)]
    modes: Modes,
    told_apart_by: Option<Counter>,
}

/// A counter that differs between the groups.
#[derive(Debug, Serialize)]
struct Counter {
    metric: String,
    means: (f64, f64),
    p: f64,
}

/// The sides with two modes of the primary metric that are apart by the change that matters.
pub(super) fn find(
    comparison: &Comparison,
    sides: [&[Run]; 2],
    settings: &Settings,
) -> Vec<SideModes> {
    let row = comparison.primary_row().filter(|_| comparison.unit == Unit::Run);
    let Some(row) = row else { return Vec::new() };
    let of = |(side, values, runs): (&'static str, &[f64], &[Run])| {
        let modes = Modes::from_values(values, settings.alpha)?;
        let (low, high) = modes.near;
        (high - low >= settings.relevant() * low.abs()).then(|| SideModes {
            side,
            metric: row.metric.clone(),
            modes,
            told_apart_by: told_apart_by(row, values, runs, modes, settings),
        })
    };
    [("good", &*row.good, sides[0]), ("bad", &*row.bad, sides[1])]
        .into_iter()
        .filter_map(of)
        .collect()
}

/// The counter with the greatest effect among those that differ between the groups.
fn told_apart_by(
    primary: &Row,
    values: &[f64],
    runs: &[Run],
    modes: Modes,
    settings: &Settings,
) -> Option<Counter> {
    if values.len() != runs.len() {
        return None;
    }
    let group = |is_low: bool| -> Vec<Run> {
        let in_it =
            values.iter().zip(runs).filter(|(value, _)| (**value < modes.between) == is_low);
        in_it.map(|(_, run)| run.clone()).collect()
    };
    let options = cowslip_compare::Options { primary: None, ..settings.options() };
    let apart = compare(&group(true), &group(false), &options).ok()?;
    let is_counter = |row: &&Row| {
        let is_time = ["_seconds", "_share"].iter().any(|unit| row.name().ends_with(unit));
        !is_time && row.metric != primary.metric && !is_consequence(row)
    };
    let rows = apart.rows.iter().filter(|row| row.verdict == Verdict::Differs).filter(is_counter);
    let best = rows.max_by(|a, b| a.effect_size().total_cmp(&b.effect_size()))?;
    Some(Counter { metric: best.metric.clone(), means: best.means, p: best.p })
}

impl SideModes {
    /// One sentence.
    pub(super) fn sentence(&self) -> String {
        let Self { side, metric, modes, told_apart_by } = self;
        let ((fewer, more), (low, high)) = (modes.counts, modes.near);
        let value = |value| format::value(metric, value);
        let apart = match told_apart_by {
            None => "no counter tells them apart".to_owned(),
            Some(Counter { metric, means: (of_low, of_high), .. }) => format!(
                "told apart best by {}: {} and {}",
                name(metric),
                format::value(metric, *of_low),
                format::value(metric, *of_high)
            ),
        };
        format!(
            "{side} has two modes of {}: {fewer} of {} runs near {}, {more} near {} (p {}); {apart}",
            name(metric),
            fewer + more,
            value(low),
            value(high),
            format::p(modes.p)
        )
    }
}

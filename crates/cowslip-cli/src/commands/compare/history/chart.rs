//! The chart of a group of entries: a point each, the median of each level, and the changes.
//!
//! Places are in percent of the chart, which the page stretches: texts and points keep their size at any width.

use cowslip_compare::history::{Group, History};
use minijinja::context;
use minijinja::value::Value;
use serde_json::json;

use super::sentences;
use crate::commands::compare::record::commit;
use crate::commands::compare::result::format;

/// Room beside the first and the last entry, and above and below all.
const MARGIN: f64 = 3.0;
/// The wanted number of lines across the chart.
const LINES: f64 = 4.0;
/// Numbers below the chart.
const NUMBERS: usize = 4;

/// The data with which the page's template draws a group.
pub(super) fn chart(history: &History, group: &Group) -> Value {
    let values = || group.points.iter().map(|point| point.value);
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(f64::NEG_INFINITY, f64::max);
    let (low, high) = if low < high { (low, high) } else { (low - 1.0, high + 1.0) };
    let last = (group.points.len() - 1).max(1) as f64;
    let place = |share: f64| round(MARGIN + (100.0 - 2.0 * MARGIN) * share);
    let x = |index: f64| place(if group.points.len() == 1 { 0.5 } else { index / last });
    let y = |value: f64| place((high - value) / (high - low));
    let dots = group.points.iter().enumerate();
    let dots: String =
        dots.map(|(at, point)| format!("M{} {}h0", x(at as f64), y(point.value))).collect();
    let levels = group.levels.iter().map(|level| {
        let (from, to) = (x(level.from as f64 - 0.5), x(level.to as f64 - 0.5));
        format!("M{from} {}H{to}", y(level.median))
    });
    let marks = group.changes.iter().enumerate().map(|(index, change)| {
        let commit = group.points[change.at].commit.as_deref().map(commit::short);
        context! { number => index + 1, x => x(change.at as f64 - 0.5), commit }
    });
    let tips: Vec<_> = group
        .points
        .iter()
        .enumerate()
        .map(|(at, point)| {
            let value = format::value(&history.metric, point.value);
            let text = format!("{}: {value}, median of {}", sentences::entry(point), point.runs);
            json!([x(at as f64), y(point.value), text, point.time_unix_ns / 1_000_000])
        })
        .collect();
    let lines = rounds(low, high).into_iter().map(|value| {
        context! { y => y(value), text => format::value(&history.metric, value) }
    });
    let step = (group.points.len() - 1).div_ceil(NUMBERS).max(1);
    let numbers = group.points.iter().enumerate().step_by(step);
    let numbers = numbers.map(|(at, point)| context! { x => x(at as f64), text => point.number });
    context! {
        dots,
        levels => levels.collect::<String>(),
        marks => marks.collect::<Vec<_>>(),
        lines => lines.collect::<Vec<_>>(),
        numbers => numbers.collect::<Vec<_>>(),
        tips => Value::from_safe_string(json!(tips).to_string().replace('<', "\\u003c")),
    }
}

/// Round values of a range, a few.
fn rounds(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / LINES;
    let power = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (low / step).ceil();
    let all = (0..=2 * LINES as u32).map(|index| (first + f64::from(index)) * step);
    all.take_while(|value| *value <= high).collect()
}

fn round(place: f64) -> f64 {
    (place * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_are_at_round_values_within_the_range() {
        let close = |all: Vec<f64>, wanted: &[f64]| {
            assert_eq!(all.len(), wanted.len(), "{all:?}");
            assert!(all.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12), "{all:?}");
        };
        close(super::rounds(0.97, 1.21), &[1.0, 1.1, 1.2]);
        close(super::rounds(-3.0, 7.0), &[0.0, 5.0]);
        close(super::rounds(100.0, 139.0), &[100.0, 110.0, 120.0, 130.0]);
    }
}

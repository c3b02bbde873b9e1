//! Formats numbers and verdicts of a comparison.

use std::collections::BTreeSet;

use cowslip_compare::recorder::way_back;
use cowslip_compare::stats::{Estimate, median};
use cowslip_compare::{Comparison, FactDifference, Row, TimePart, TimeSplit, Unit, Verdict};
use cowslip_report::units::{fixed, human};

use super::Settings;

/// A value in the unit that the metric's name ends with.
pub(in crate::commands::compare) fn value(metric: &str, value: f64) -> String {
    let (name, per) = match metric.strip_suffix("/s") {
        Some(name) => (name, "/s"),
        None => (metric, ""),
    };
    let text = if name.ends_with("_share") {
        fixed(100.0 * value, 2) + " %"
    } else if name.ends_with("_bytes") {
        human(value, "bytes")
    } else if name.ends_with("_seconds") && per.is_empty() {
        seconds(value)
    } else {
        human(value, "1/s").trim_end_matches("/s").replace(' ', "")
    };
    text + per
}

pub(in crate::commands::compare) fn seconds(seconds: f64) -> String {
    human(seconds * 1e9, "ns")
}

pub(in crate::commands::compare) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        size if size >= 1e9 => format!("{:+.0e}×", share + share.signum()),
        size if size >= 1e5 => format!("{:+.0}×", share + share.signum()),
        size if size >= 100.0 => signed(percent, 0) + " %",
        size if size >= 10.0 => signed(percent, 1) + " %",
        _ => signed(percent, 2) + " %",
    }
}

/// Formats a value with its sign, which it lacks if it is rounded to zero.
pub(super) fn signed(value: f64, decimals: usize) -> String {
    let text = fixed(value, decimals);
    let is_nought = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    if value > 0.0 && !is_nought { format!("+{text}") } else { text }
}

/// The confidence of intervals, in percent.
pub(super) fn level(alpha: f64) -> String {
    let level = fixed(100.0 * (1.0 - alpha), 1);
    level.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(in crate::commands::compare) fn p(p: f64) -> String {
    if p < 1e-3 { format!("{p:.1e}") } else { format!("{p:.3}") }
}

pub(super) fn t(row: &Row) -> String {
    match &row.welch {
        Some(welch) if welch.t.abs() >= 1e5 => format!("{:.1e}", welch.t),
        Some(welch) => fixed(welch.t, 2),
        None => "–".to_owned(),
    }
}

/// A standardised effect and its interval.
pub(super) fn effect(effect: Option<Estimate>) -> String {
    match effect {
        Some(Estimate { value, interval: Some(bounds) }) => {
            format!("{} {}", short(value), interval(bounds))
        }
        Some(Estimate { value, interval: None }) => short(value),
        None => "–".to_owned(),
    }
}

pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e4 => format!("{value:+.0e}"),
        size if size >= 100.0 => signed(value, 0),
        _ => signed(value, 1),
    }
}

pub(super) fn interval((low, high): (f64, f64)) -> String {
    format!("[{}, {}]", short(low), short(high))
}

/// The verdict, with its direction.
pub(super) fn verdict(row: &Row) -> &'static str {
    match (row.verdict, row.means.1 > row.means.0) {
        (Verdict::Differs, true) => "▲ differs",
        (Verdict::Differs, false) => "▼ differs",
        (Verdict::Perhaps, true) => "▵ perhaps",
        (Verdict::Perhaps, false) => "▿ perhaps",
        (Verdict::Unproven, _) => "",
    }
}

pub(super) fn headline(comparison: &Comparison) -> String {
    let count = |verdict| comparison.rows.iter().filter(|row| row.verdict == verdict).count();
    let (good, bad) = comparison.runs;
    let unit = match comparison.unit {
        Unit::Run => "compared run by run",
        Unit::Sample => "compared sample by sample",
    };
    format!(
        "{good} good and {bad} bad runs, {unit}: of {} metrics {} differ and {} do perhaps; {} are \
         constant",
        comparison.rows.len() + comparison.constant.len(),
        count(Verdict::Differs),
        count(Verdict::Perhaps),
        comparison.constant.len()
    )
}

/// The difference of the primary metric by its means and by Hodges and Lehmann's shift, and the smallest one that
/// would have been shown if it is not.
pub(super) fn certainty(comparison: &Comparison, alpha: f64) -> Vec<String> {
    let Some(row) = comparison.primary_row() else { return Vec::new() };
    let change = |change: f64| {
        let sign = if change < 0.0 { "-" } else { "+" };
        format!("{sign}{}", value(&row.metric, change.abs()))
    };
    let with_interval = |estimate: f64, interval: Option<(f64, f64)>| {
        let interval =
            interval.map(|(low, high)| format!(" ({} to {})", change(low), change(high)));
        change(estimate) + &interval.unwrap_or_default()
    };
    let means = row.welch.map(|welch| {
        let (low, high) = welch.interval;
        with_interval(-welch.difference, Some((-high, -low)))
    });
    let mut all = Vec::new();
    if let (Some(means), Some(shift)) = (means, row.shift) {
        let shift = with_interval(shift.value, shift.interval);
        all.push(format!(
            "{} % intervals: the means differ by {means}, Hodges and Lehmann's shift is {shift}",
            level(alpha)
        ));
    }
    let least = row.detectable.filter(|_| row.verdict == Verdict::Unproven);
    all.extend(least.map(|least| {
        let relative = percent(least / row.means.0.abs());
        let relative = match row.means.0 {
            0.0 => String::new(),
            _ => format!(" ({})", relative.trim_start_matches('+')),
        };
        format!(
            "a difference by {}{relative} or more would have been shown with a probability of 80 %",
            value(&row.metric, least)
        )
    }));
    all
}

/// Further facts and advice, a sentence each.
pub(super) fn advice(
    comparison: &Comparison,
    split: Option<&TimeSplit>,
    settings: &Settings,
) -> Vec<String> {
    let mut all: Vec<String> =
        comparison.notes.iter().map(|note| format!("note: {note}")).collect();
    all.extend(split.and_then(contention));
    let unit = match comparison.unit {
        Unit::Run => "runs",
        Unit::Sample => "independent samples",
    };
    let perhaps = comparison.rows.iter().filter(|row| row.verdict == Verdict::Perhaps);
    let needs =
        perhaps.filter_map(|row| Some((row.runs_for_this?, &row.metric))).collect::<Vec<_>>();
    if let Some((most, metric)) = needs.iter().max() {
        all.push(format!(
            "to settle what differs perhaps, record anew and compare that --metric alone: {most} {unit} a side \
             find such a difference of {metric} with a probability of 80 %"
        ));
    }
    all.extend(power(comparison, settings, unit));
    for (names, what) in [
        (&comparison.only_good, "only in good runs"),
        (&comparison.only_bad, "only in bad runs"),
        (&comparison.too_few, "with too few values"),
        (&comparison.too_coarse, "counted in ticks too coarse for such short runs"),
    ] {
        if !names.is_empty() {
            all.push(format!("{what}: {}", some(names)));
        }
    }
    if settings.all && !comparison.constant.is_empty() {
        all.push(format!("constant: {}", comparison.constant.join(", ")));
    }
    all
}

/// States the change that this number of runs can find, and the number of runs that finds the wanted change: for the
/// primary metric, or for half of all metrics.
fn power(comparison: &Comparison, settings: &Settings, unit: &str) -> Vec<String> {
    let primary = comparison.primary_row();
    let is_meant = |row: &&Row| primary.is_none_or(|primary| primary.metric == row.metric);
    let rows: Vec<&Row> = comparison.rows.iter().filter(is_meant).collect();
    let what = match primary {
        Some(row) => format!("a change of {}", row.metric),
        None => "in half of the metrics a change".to_owned(),
    };
    let mut all = Vec::new();
    let is_said = primary.is_some_and(|row| row.verdict == Verdict::Unproven);
    let relative = rows.iter().filter(|row| row.means.0 != 0.0 && !is_said);
    let found = relative.filter_map(|row| Some(row.detectable? / row.means.0.abs()));
    if let Some(change) = median(found) {
        let change = percent(change);
        let change = change.trim_start_matches('+');
        all.push(format!(
            "so many {unit} find {what} by {change} or more with a probability of 80 %"
        ));
    }
    if let Some(runs) = median(rows.iter().filter_map(|row| row.runs_for_wanted).map(f64::from)) {
        all.push(format!("{runs:.0} {unit} a side find {what} by {} %", settings.effect));
    }
    all
}

/// Notes if good runs waited for a processor for a great part of their time.
fn contention(split: &TimeSplit) -> Option<String> {
    const GREAT: f64 = 0.2;
    let waits = split.parts.iter().find(|part| part.part == TimePart::ProcessorWait)?.means.0;
    (waits > GREAT * split.means.0).then(|| {
        format!(
            "note: good runs waited {} for a processor, in {}: something else used the machine, or they have more \
             threads than it has processors",
            seconds(waits),
            seconds(split.means.0)
        )
    })
}

/// The settings that differ, beside the command, in one sentence.
pub(super) fn settings(facts: &[FactDifference]) -> Option<String> {
    let list = |values: &BTreeSet<String>| match values.len() {
        0 => "unknown".to_owned(),
        _ => values.iter().cloned().collect::<Vec<_>>().join(" or "),
    };
    let of = |fact: &FactDifference| {
        let (good, bad) = (list(&fact.good), list(&fact.bad));
        let one = fact.good.first().filter(|_| fact.good.len() == 1);
        let back = one.and_then(|good| way_back(&fact.name, good));
        let back = back.map_or_else(String::new, |way| format!(" (to return: {way})"));
        format!("{} is {good} in good runs, {bad} in bad ones{back}", fact.name)
    };
    let all: Vec<String> = facts.iter().filter(|fact| fact.name != "command").map(of).collect();
    (!all.is_empty()).then(|| format!("not the same: {}", all.join("; ")))
}

fn some(names: &[String]) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MOST) {
        Some(more) if more > 0 => format!("{shown} and {more} more (--json has all)"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_metric() {
        assert_eq!(value("process.rss_bytes", 3.0 * 1024.0 * 1024.0), "3 MiB");
        assert_eq!(value("wall_seconds", 0.25), "250 ms");
        assert_eq!(value("vmstat.pgfault/s", 1_234_567.0), "1.23M/s");
        assert_eq!(value("process.cpu_seconds/s", 0.5), "0.500/s");
        assert_eq!(value("cpu.idle_share", 0.123_45), "12.35 %");
        assert_eq!(value("vmstat.pgfault", 1e140), "1.00e140");
        assert_eq!(percent(-1e-9), "0.00 %");
        assert_eq!(percent(1e-9), "0.00 %");
        assert_eq!((percent(1.0), percent(-0.123_45)), ("+100 %".to_owned(), "-12.3 %".to_owned()));
        assert_eq!((p(0.0312), p(1.5e-9)), ("0.031".to_owned(), "1.5e-9".to_owned()));
    }
}

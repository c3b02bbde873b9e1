//! Results of a server as rows and series of the report, and the ratios of the promises.

use crate::report::{Latencies, Report, Row, Series};

use super::figures::FIGURES;
use super::running_server::{AROUND_NS, Measured, Save};
use super::setup::{COWSLIP, COWSLIP_CHILD_SHARE, STOCK, STOCK_IDLE_CHILD};

/// The metrics that must all be zero.
const MISTAKES: [&str; 7] = [
    "failed_saves",
    "wrong_keys",
    "missing_keys",
    "extra_keys",
    "lost_updates",
    "live_extra_keys",
    FAILED_REQUESTS,
];
const FAILED_REQUESTS: &str = "failed_requests";
const LATENCY_DURING_SAVE: &str = "set_latency_during_save";
/// The same from the point of view of clients with a steady pace.
const DELAY_DURING_SAVE: &str = "set_delay_during_save";

/// Adds one server: a summary without variant, each save under its label, and the latencies over time.
pub(crate) fn push(report: &mut Report, measured: &Measured, size_bytes: u64) {
    let name = measured.setup.name;
    for figure in &FIGURES {
        let values: Vec<_> =
            figure.saves(measured).map(|save| ((figure.of)(save), &save.label)).collect();
        let row = |stat, value| {
            Row::new(name, figure.metric, stat, value, figure.unit).size_bytes(size_bytes)
        };
        for stat in figure.stats {
            if let Some(value) = stat.of(values.iter().map(|(value, _)| *value)) {
                report.row(row(stat.name(), value).n(values.len() as u64));
            }
        }
        for &(value, label) in &values {
            report.row(row("value", value).variant(label.as_str()));
        }
    }
    let failed = measured.failed_requests as f64;
    report.row(Row::new(name, FAILED_REQUESTS, "sum", failed, "count").size_bytes(size_bytes));

    let merged = |of: fn(&Save) -> &Latencies| {
        let mut all = Latencies::new();
        measured.busy_saves().for_each(|save| all.merge(of(save)));
        all
    };
    let during = merged(|save| &save.during.latencies);
    let latencies = [
        ("set_latency_before_save", &merged(|save| &save.quiet.latencies)),
        (LATENCY_DURING_SAVE, &during),
        (DELAY_DURING_SAVE, &during.at_steady_pace()),
        ("set_latency_after_save", &merged(|save| &save.after.latencies)),
    ];
    for (metric, latencies) in latencies {
        latencies.push(report, name, metric, Some(size_bytes), None);
    }
    for save in measured.busy_saves() {
        let (latencies, label) = (&save.during.latencies, Some(save.label.as_str()));
        latencies.push(report, name, LATENCY_DURING_SAVE, Some(size_bytes), label);
    }
    report.series.push(slowest(measured));
    report.series.extend(measured.busy_saves().map(|save| around_fork(name, save)));
}

/// The slowest request of each 10 ms, and the saves as marks.
fn slowest(measured: &Measured) -> Series {
    let mark = |save: &Save| (save.span.0, save.span.1, save.label.clone());
    Series {
        system: measured.setup.name.to_owned(),
        metric: "set_latency_max".to_owned(),
        unit: "ns",
        points: measured.saves.iter().flat_map(|save| save.slowest.iter().copied()).collect(),
        marks: measured.saves.iter().map(mark).collect(),
    }
}

/// The slowest request of each millisecond around the fork, which is at 0.
fn around_fork(name: &str, save: &Save) -> Series {
    let step_s = 2.0 * AROUND_NS as f64 / 1e9 / save.around_fork_ns.len() as f64;
    let at = |step| step as f64 * step_s - AROUND_NS as f64 / 1e9;
    Series {
        system: format!("{name}, {}", save.label),
        metric: "set_latency_around_fork".to_owned(),
        unit: "ns",
        points: (save.around_fork_ns.iter().enumerate())
            .map(|(step, &ns)| (at(step), ns as f64))
            .collect(),
        marks: Vec::new(),
    }
}

/// Adds the ratios of the promises, which apply to a full run. A ratio with missing rows has no value.
pub(crate) fn push_ratios(report: &mut Report, size_bytes: u64, full: bool) {
    let find = |system, metric, stat| report.find(system, metric, stat, Some(size_bytes), None);
    let over = |above: Option<f64>, below: Option<f64>| Some(above? / below?);
    let fork = over(find(STOCK, "fork", "p50"), find(COWSLIP, "fork", "max"));
    let ops = |system| find(system, "ops_during_save", "mean");
    let ops_idle = over(ops(COWSLIP_CHILD_SHARE), ops(STOCK_IDLE_CHILD));
    let ops = over(ops(COWSLIP), ops(STOCK));
    let p999 = |metric| over(find(COWSLIP, metric, "p999"), find(STOCK, metric, "p999"));
    let (latency, delay) = (p999(LATENCY_DURING_SAVE), p999(DELAY_DURING_SAVE));
    let mistakes = report
        .rows
        .iter()
        .filter(|row| row.stat == "sum" && MISTAKES.contains(&row.metric.as_str()))
        .filter_map(|row| row.value)
        .reduce(|all, one| all + one);

    let promised = |bound: f64| full.then_some(bound);
    let name = "redis_fork_stock_over_cowslip";
    report.ratio(name, fork, promised(20.0), None);
    let name = "redis_ops_during_save_cowslip_over_stock";
    report.ratio(name, ops, promised(1.0), None);
    let name = "redis_ops_during_save_child_share_over_idle_child";
    report.ratio(name, ops_idle, None, None);
    let name = "redis_p999_during_save_cowslip_over_stock";
    report.ratio(name, latency, None, promised(1.0));
    report.ratio("redis_p999_delay_during_save_cowslip_over_stock", delay, None, None);
    report.ratio_at_most("lost_or_wrong", mistakes, 0.0);
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    /// Summaries of two servers as `push` writes them.
    fn report(cowslip_fork_ns: f64, failed_requests: f64) -> Report {
        let mut report = Report::new("demo", Map::new());
        let mut add = |system, metric, stat, value| {
            report.row(Row::new(system, metric, stat, value, "").size_bytes(64));
        };
        for (system, fork_ns, p999_ns) in [(STOCK, 20e6, 4e6), (COWSLIP, cowslip_fork_ns, 1e6)] {
            add(system, "fork", "p50", fork_ns / 2.0);
            add(system, "fork", "max", fork_ns);
            add(system, "ops_during_save", "mean", 40_000.0);
            add(system, LATENCY_DURING_SAVE, "p999", p999_ns);
            add(system, "wrong_keys", "sum", 0.0);
            add(system, FAILED_REQUESTS, "sum", failed_requests);
        }
        push_ratios(&mut report, 64, true);
        report
    }

    fn promises_kept(report: &Report) -> Vec<Option<bool>> {
        report.ratios.iter().map(|ratio| ratio.holds).collect()
    }

    #[test]
    fn the_worst_fork_of_cowslip_is_held_against_the_usual_one_of_stock() {
        let kept = report(0.5e6, 0.0);
        assert_eq!(kept.ratios[0].value, Some(20.0));
        let all = [Some(true), Some(true), None, Some(true), None, Some(true)];
        assert_eq!(promises_kept(&kept), all);
        assert_eq!(promises_kept(&report(0.6e6, 0.0))[0], Some(false));
    }

    #[test]
    fn one_failed_request_breaks_the_promise_and_no_rows_prove_nothing() {
        assert_eq!(promises_kept(&report(0.5e6, 1.0)).last(), Some(&Some(false)));
        let mut empty = Report::new("demo", Map::new());
        push_ratios(&mut empty, 64, true);
        assert_eq!(promises_kept(&empty), [None; 6]);
    }
}

//! Results of a server as rows and series of the report, and the ratios of the promises.

use crate::report::{Latencies, Report, Row, Series};

use super::figures::FIGURES;
use super::running_server::{AROUND_NS, Measured, Save};
use super::setup::{COWSLIP, STOCK};
use crate::promise::{Bound, Figures, Promise, judge, over};

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
            if let Some(value) = stat.compute(values.iter().map(|(value, _)| *value)) {
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

pub(crate) const PROMISES: [Promise; 4] = [
    Promise {
        name: "lost_or_wrong",
        bound: Bound::AtMost(0.0),
        value: |figures| figures.sum(&MISTAKES),
    },
    Promise {
        name: "redis_fork_stock_over_cowslip",
        bound: Bound::AtLeast(20.0),
        value: |figures| {
            over(find(figures, STOCK, "fork", "p50"), find(figures, COWSLIP, "fork", "max"))
        },
    },
    Promise {
        name: "redis_ops_during_save_cowslip_over_stock",
        bound: Bound::AtLeast(1.0),
        value: |figures| {
            let ops = |system| find(figures, system, "ops_during_save", "mean");
            over(ops(COWSLIP), ops(STOCK))
        },
    },
    Promise {
        name: "redis_p999_during_save_cowslip_over_stock",
        bound: Bound::AtMost(1.0),
        value: |figures| {
            let latency = |system| find(figures, system, LATENCY_DURING_SAVE, "p999");
            over(latency(COWSLIP), latency(STOCK))
        },
    },
];

fn find(figures: &Figures<'_>, system: &str, metric: &str, stat: &str) -> Option<f64> {
    figures.find(system, metric, stat, figures.size_bytes, None)
}

/// Adds the ratios of the promises; those about speed apply to a full run.
pub(crate) fn push_ratios(report: &mut Report, size_bytes: u64, full: bool) {
    judge(report, size_bytes, if full { &PROMISES } else { &PROMISES[..1] });
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
        assert_eq!(kept.ratios[1].value, Some(20.0));
        let all = [Some(true); 4];
        assert_eq!(promises_kept(&kept), all);
        assert_eq!(promises_kept(&report(0.6e6, 0.0))[1], Some(false));
    }

    #[test]
    fn one_failed_request_breaks_the_promise_and_no_rows_prove_nothing() {
        assert_eq!(promises_kept(&report(0.5e6, 1.0))[0], Some(false));
        let mut empty = Report::new("demo", Map::new());
        push_ratios(&mut empty, 64, true);
        assert_eq!(promises_kept(&empty), [None; 4]);
    }
}

//! A server's saves as rows and series of the report, and the ratios that promises are made about.

use cowslip_report::{Latencies, Report, Row, Series};

use super::cut::Verdict;
use super::round::Writers;
use super::running_server::{RunningServer, Save};
use super::setup::{COWSLIP, STOCK};

/// How the values of several saves become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stat {
    P50,
    Mean,
    Min,
    Max,
    /// Over all saves, those with the writers still included.
    Sum,
}

/// A number that each save has.
struct Figure {
    metric: &'static str,
    unit: &'static str,
    of: fn(&Save) -> f64,
    stats: &'static [Stat],
}

const fn figure(
    metric: &'static str,
    unit: &'static str,
    of: fn(&Save) -> f64,
    stats: &'static [Stat],
) -> Figure {
    Figure { metric, unit, of, stats }
}

#[rustfmt::skip]
const FIGURES: [Figure; 17] = [
    figure("fork", "ns", |s| s.fork_ns as f64, &[Stat::P50, Stat::Max]),
    figure("ops_before_save", "1/s", |s| s.quiet.ops, &[Stat::Mean]),
    figure("ops_during_save", "1/s", |s| s.during.ops, &[Stat::Mean]),
    figure("save_duration", "ns", |s| s.duration_ns as f64, &[Stat::Mean]),
    figure("cow_bytes", "bytes", |s| s.cow_bytes as f64, &[Stat::Mean]),
    figure("huge_mapped_bytes_before", "bytes", |s| s.mapped_before.huge_bytes as f64, &[Stat::Min]),
    figure("huge_mapped_bytes_after", "bytes", |s| s.mapped_after.huge_bytes as f64, &[Stat::Min]),
    figure("resident_bytes_before", "bytes", |s| s.mapped_before.resident_bytes as f64, &[Stat::Max]),
    figure("resident_bytes_after", "bytes", |s| s.mapped_after.resident_bytes as f64, &[Stat::Max]),
    figure("huge_coverage_before", "ratio", |s| s.mapped_before.coverage(), &[Stat::Min]),
    figure("huge_coverage_after", "ratio", |s| s.mapped_after.coverage(), &[Stat::Min]),
    figure("verified_saves", "count", |s| f64::from(u8::from(is_exact(s))), &[Stat::Sum]),
    figure("wrong_keys", "count", |s| s.saved.wrong_keys as f64, &[Stat::Sum]),
    figure("missing_keys", "count", |s| s.saved.missing_keys as f64, &[Stat::Sum]),
    figure("extra_keys", "count", |s| s.saved.extra_keys as f64, &[Stat::Sum]),
    figure("lost_updates", "count", |s| (s.live.wrong_keys + s.live.missing_keys) as f64, &[Stat::Sum]),
    figure("live_extra_keys", "count", |s| s.live.extra_keys as f64, &[Stat::Sum]),
];

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
/// The same, as clients with a steady pace would have seen it.
const DELAY_DURING_SAVE: &str = "set_delay_during_save";

fn is_exact(save: &Save) -> bool {
    save.saved == Verdict::default()
}

/// Adds one server: a summary without variant, each save under its label, and the latencies over
/// time.
pub(crate) fn push(report: &mut Report, server: &RunningServer, size_bytes: u64) {
    let busy = |save: &&Save| save.writers == Writers::Busy;
    for figure in &FIGURES {
        let saves = server.saves.iter().filter(|save| busy(save) || figure.is_a_count());
        let values: Vec<_> = saves.map(|save| ((figure.of)(save), &save.label)).collect();
        let row = |stat, value| {
            Row::new(server.name, figure.metric, stat, value, figure.unit).size_bytes(size_bytes)
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
    let failed = server.failed_requests as f64;
    let failed = Row::new(server.name, FAILED_REQUESTS, "sum", failed, "count");
    report.row(failed.size_bytes(size_bytes));

    let (mut quiet, mut during) = (Latencies::new(), Latencies::new());
    for save in server.saves.iter().filter(busy) {
        quiet.merge(&save.quiet.latencies);
        during.merge(&save.during.latencies);
    }
    let latencies = [
        ("set_latency_before_save", &quiet),
        (LATENCY_DURING_SAVE, &during),
        (DELAY_DURING_SAVE, &during.at_steady_pace()),
    ];
    for (metric, latencies) in latencies {
        latencies.push(report, server.name, metric, Some(size_bytes), None);
    }
    for save in server.saves.iter().filter(busy) {
        let (latencies, label) = (&save.during.latencies, Some(save.label.as_str()));
        let size_bytes = Some(size_bytes);
        latencies.push(report, server.name, LATENCY_DURING_SAVE, size_bytes, label);
    }
    report.series.push(series(server));
}

/// The longest latency of each 10 ms, and the saves as marks.
fn series(server: &RunningServer) -> Series {
    let mark = |save: &Save| (save.span.0, save.span.1, save.label.clone());
    Series {
        rival: server.name.to_owned(),
        metric: "set_latency_max".to_owned(),
        unit: "ns",
        points: server.saves.iter().flat_map(|save| save.peaks.iter().copied()).collect(),
        marks: server.saves.iter().map(mark).collect(),
    }
}

/// Adds what the rows say about the promises. A ratio whose rows are missing has no value.
pub(crate) fn push_ratios(report: &mut Report, size_bytes: u64) {
    let find = |name, metric, stat| report.find(name, metric, stat, Some(size_bytes), None);
    let over = |above: Option<f64>, below: Option<f64>| Some(above? / below?);
    let fork = over(find(STOCK, "fork", "p50"), find(COWSLIP, "fork", "max"));
    let ops = |name| find(name, "ops_during_save", "mean");
    let ops = over(ops(COWSLIP), ops(STOCK));
    let p999 = |metric| over(find(COWSLIP, metric, "p999"), find(STOCK, metric, "p999"));
    let (latency, delay) = (p999(LATENCY_DURING_SAVE), p999(DELAY_DURING_SAVE));
    let mistakes = report
        .rows
        .iter()
        .filter(|row| row.stat == "sum" && MISTAKES.contains(&row.metric.as_str()))
        .filter_map(|row| row.value)
        .reduce(|all, one| all + one);

    report.ratio_at_least("redis_fork_stock_over_cowslip", fork, 20.0);
    report.ratio_at_least("redis_ops_during_save_cowslip_over_stock", ops, 1.1);
    report.ratio_at_most("redis_p999_during_save_cowslip_over_stock", latency, 1.0);
    report.ratio("redis_p999_delay_during_save_cowslip_over_stock", delay, None, None);
    report.ratio_at_most("lost_or_wrong", mistakes, 0.0);
}

impl Figure {
    /// Of what must be right in every save, also with the writers still.
    fn is_a_count(&self) -> bool {
        self.stats.contains(&Stat::Sum)
    }
}

impl Stat {
    fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Sum => "sum",
        }
    }

    fn of(self, values: impl Iterator<Item = f64>) -> Option<f64> {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let sum: f64 = values.iter().sum();
        match self {
            Self::P50 => values.get(values.len() / 2).copied(),
            Self::Mean => (!values.is_empty()).then(|| sum / values.len() as f64),
            Self::Min => values.first().copied(),
            Self::Max => values.last().copied(),
            Self::Sum => (!values.is_empty()).then_some(sum),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    /// Summaries of two servers as `push` writes them.
    fn report(cowslip_fork_ns: f64, failed_requests: f64) -> Report {
        let mut report = Report::new("demo", Map::new());
        let mut add = |name, metric, stat, value| {
            report.row(Row::new(name, metric, stat, value, "").size_bytes(64));
        };
        for (name, fork_ns, p999_ns) in [(STOCK, 20e6, 4e6), (COWSLIP, cowslip_fork_ns, 1e6)] {
            add(name, "fork", "p50", fork_ns / 2.0);
            add(name, "fork", "max", fork_ns);
            add(name, "ops_during_save", "mean", 40_000.0);
            add(name, LATENCY_DURING_SAVE, "p999", p999_ns);
            add(name, "wrong_keys", "sum", 0.0);
            add(name, FAILED_REQUESTS, "sum", failed_requests);
        }
        push_ratios(&mut report, 64);
        report
    }

    fn verdicts(report: &Report) -> Vec<Option<bool>> {
        report.ratios.iter().map(|ratio| ratio.holds).collect()
    }

    #[test]
    fn the_worst_fork_of_cowslip_is_held_against_the_usual_one_of_stock() {
        let kept = report(0.5e6, 0.0);
        assert_eq!(kept.ratios[0].value, Some(20.0));
        assert_eq!(verdicts(&kept), [Some(true), Some(false), Some(true), None, Some(true)]);
        assert_eq!(verdicts(&report(0.6e6, 0.0))[0], Some(false));
    }

    #[test]
    fn one_failed_request_breaks_the_promise_and_no_rows_prove_nothing() {
        assert_eq!(verdicts(&report(0.5e6, 1.0)).last(), Some(&Some(false)));
        let mut empty = Report::new("demo", Map::new());
        push_ratios(&mut empty, 64);
        assert_eq!(verdicts(&empty), [None; 5]);
    }

    #[test]
    fn several_saves_become_one_number() {
        let of = |stat: Stat| stat.of([5.0, 1.0, 3.0].into_iter());
        let all = [Stat::P50, Stat::Mean, Stat::Min, Stat::Max, Stat::Sum].map(of);
        assert_eq!(all, [3.0, 3.0, 1.0, 5.0, 9.0].map(Some));
        assert_eq!(Stat::Mean.of([].into_iter()), None);
    }
}

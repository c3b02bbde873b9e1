//! The rows of one way to run a server under one load. A figure with phases has a column for each: a stat.

use crate::report::{Report, Row, Series};

use super::cycle::{CYCLE, Cycle, LONG_MS, PHASES, Phase, TimeLine, together};
use crate::rows::push_durations;

pub(super) const REQUESTS: &str = "requests";
pub(super) const CPU: &str = "cpu_a_request";
pub(super) const MAIN_CPU: &str = "main_cpu_a_request";
pub(super) const SERVICE_CPU: &str = "service_thread_cpu";
const CHILD_CPU: &str = "child_cpu";
pub(super) const FORK: &str = "redis_fork";
const LONGEST_STALL: &str = "longest_stall";
/// The slowest request of each cycle.
pub(super) const SLOWEST: &str = "slowest_request_cycle";
/// The 99th percentile of each cycle: one that the host held up does not decide for all.
pub(super) const P99: &str = "p99_request_cycle";
pub(super) const EXTRA: &str = "extra_bytes";
const LATENCY_CYCLE: &str = "latency_cycle";
const LATENCIES: [&str; 5] =
    ["latency_before", "latency_during", "latency_0-1s_after", "latency_1-5s_after", LATENCY_CYCLE];
const DURATION: &str = "duration";

/// Windows of 10 ms with a request that took longer.
pub(super) fn windows_over(ms: u64) -> String {
    format!("windows_over_{ms}ms")
}

/// Adds all rows of one or more cycles.
pub(super) fn push(
    report: &mut Report,
    system: &str,
    variant: &str,
    size_bytes: u64,
    cycles: &[Cycle],
) {
    let n = cycles.len() as u64;
    let row = |metric: &str, stat: &str, value: f64, unit| {
        Row::new(system, metric, stat, value, unit).size_bytes(size_bytes).variant(variant).n(n)
    };
    let phases = together(cycles);
    let mut by_phase = |metric: &str, unit, of: &dyn Fn(&Phase) -> f64| {
        for (name, phase) in PHASES.iter().zip(&phases) {
            report.row(row(metric, name, of(phase), unit));
        }
    };
    let a_cycle = |value: u64| value as f64 / n as f64;
    by_phase(DURATION, "ns", &|phase| a_cycle(phase.window.ns));
    let has_clients = phases.iter().any(|phase| phase.window.answered > 0);
    if has_clients {
        by_phase(REQUESTS, "1/s", &|phase| phase.window.ops());
        by_phase(CPU, "ns", &|phase| phase.window.cpu_ns_a_request());
        let a_request = |phase: &Phase| phase.main_ns as f64 / phase.window.answered.max(1) as f64;
        by_phase(MAIN_CPU, "ns", &a_request);
        for (at, ms) in LONG_MS.into_iter().enumerate() {
            by_phase(&windows_over(ms), "count", &|phase| a_cycle(phase.long_steps[at]));
        }
        for (metric, phase) in LATENCIES.iter().zip(&phases) {
            phase.window.latencies.push(report, system, metric, Some(size_bytes), Some(variant));
        }
        let processors: f64 = cycles.iter().map(|cycle| cycle.client_processors).sum();
        report.row(row("client_processors", "mean", processors / n as f64, "count"));
        let latencies = || cycles.iter().map(|cycle| &cycle.phases[CYCLE].window.latencies);
        let slowest: Vec<_> = latencies().map(|all| all.max_ns() as f64).collect();
        push_durations(report, &row(SLOWEST, "", 0.0, "ns"), &slowest);
        let p99: Vec<_> = latencies().map(|all| all.quantile_ns(0.99) as f64).collect();
        push_durations(report, &row(P99, "", 0.0, "ns"), &p99);
    }
    for (metric, of) in [
        (FORK, (|cycle| cycle.fork_ns) as fn(&Cycle) -> u64),
        (SERVICE_CPU, |cycle| cycle.service_ns),
        (CHILD_CPU, |cycle| cycle.child_ns),
    ] {
        let values: Vec<_> = cycles.iter().map(|cycle| of(cycle) as f64).collect();
        // Stock servers have no thread of Cowslip's.
        if values.iter().any(|&ns| ns > 0.0) {
            push_durations(report, &row(metric, "", 0.0, "ns"), &values);
        }
    }
    let most = |of: fn(&Cycle) -> Option<u64>| cycles.iter().filter_map(of).max();
    if let Some(ns) = most(|cycle| cycle.longest_stall_ns) {
        report.row(row(LONGEST_STALL, "max", ns as f64, "ns"));
    }
    if let Some(bytes) = most(|cycle| Some(cycle.extra_bytes)) {
        report.row(row(EXTRA, "max", bytes as f64, "bytes"));
    }
    let least = cycles.iter().map(|cycle| cycle.huge_coverage).fold(f64::INFINITY, f64::min);
    report.row(row("huge_coverage_after", "min", least, "ratio"));
}

/// Adds the first cycle over time.
pub(super) fn push_line(report: &mut Report, system: &str, variant: &str, line: &TimeLine) {
    let mark = vec![(line.save.0, line.save.1, "save".to_owned())];
    let per_second = |&answered: &u64| answered as f64 / TimeLine::STEP_S;
    let all = [
        (REQUESTS, "1/s", line.answered.iter().map(per_second).collect::<Vec<_>>()),
        ("slowest_request", "ns", line.slowest_ns.iter().map(|&ns| ns as f64).collect()),
    ];
    for (metric, unit, values) in all {
        let at = |step| (step as f64 * TimeLine::STEP_S * 100.0).round() / 100.0;
        let points = values.into_iter().enumerate().map(|(step, value)| (at(step), value));
        let series = Series {
            system: system.to_owned(),
            metric: format!("{metric}, {variant}"),
            unit,
            points: points.collect(),
            marks: mark.clone(),
        };
        report.series.push(series);
    }
}

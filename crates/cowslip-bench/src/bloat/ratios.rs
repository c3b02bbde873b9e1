//! The figures that promises are made about.

use cowslip_report::Report;

use super::{BYTES_CHANGED, Options, coverage, fairness, fault, overhead, redis, requests};

const COWSLIP: &str = "cowslip";
const BASE: &str = "thp-never";
const ALWAYS: &str = "thp-always";

pub(super) fn push(report: &mut Report, options: &Options) {
    let size = Some(options.working_bytes() as u64);
    let half = size.map(|bytes| bytes / 2);
    let over = |above: Option<f64>, below: Option<f64>| Some(above? / below?);
    let covered = |name, variant| report.find(name, coverage::METRIC, "value", size, variant);
    let covered = over(covered("khugepaged", None), covered(COWSLIP, Some(coverage::ONCE)));
    let changed = report.rows.iter().filter(|row| row.metric == BYTES_CHANGED);
    let changed = changed.filter_map(|row| row.value).reduce(|a, b| a + b);

    let settled = format!("{}, {}", redis::BLOAT, redis::SETTLED);
    let held = |name| report.find(name, redis::MEMORY, "value", size, Some(&settled));
    let held = over(held(COWSLIP), held(BASE));
    let gets = |name, metric, variant| report.find(name, metric, "p50", size, Some(variant));
    let gets_over =
        |name, metric, variant| over(gets(COWSLIP, metric, variant), gets(name, metric, variant));
    let in_turns = |metric| {
        let metric = format!("{metric}_{}", redis::OVER_ALWAYS);
        report.find(COWSLIP, &metric, "p50", size, Some(redis::BLOAT))
    };
    let (gets_thp, pipelined_thp) = (in_turns(redis::GETS), in_turns(redis::PIPELINED));
    let gets_base = gets_over(BASE, redis::PIPELINED, redis::TLB);
    let touch = |name, variant| report.find(name, fault::METRIC, "p999", half, variant);
    let touch = over(touch(ALWAYS, Some(fault::DIRECT)), touch(COWSLIP, None));
    let request = |when| report.find(COWSLIP, requests::METRIC, "p999", half, Some(when));
    let request = over(request(requests::PROMOTING), request(requests::QUIET));
    let unfair = report.find(COWSLIP, fairness::METRIC, "value", half, None);
    let cpu = report.find(COWSLIP, overhead::CPU, "value", size, Some(overhead::BUSY));
    let slowdown = report.find(COWSLIP, overhead::SLOWDOWN, "p50", size, None);

    report.ratio_at_most("memory_after_delete_cowslip_over_base", held, 1.03);
    report.ratio_at_least("get_throughput_cowslip_over_thp_always", gets_thp, 0.98);
    report.ratio("get_throughput_pipelined_cowslip_over_thp_always", pipelined_thp, None, None);
    report.ratio_at_least("get_throughput_cowslip_over_base", gets_base, 1.1);
    report.ratio_at_least("fault_p999_thp_always_over_cowslip", touch, 5.0);
    report.ratio_at_most("request_p999_during_promotion_over_quiet", request, 1.5);
    report.ratio_at_most("fair_share_error", unfair, 0.1);
    report.ratio_at_most("daemon_cpu_of_a_core", cpu, 0.01);
    report.ratio_at_most("busy_process_slowdown", slowdown, 1.01);
    report.ratio_at_least("coverage_seconds_khugepaged_default_over_cowslip", covered, 20.0);
    report.ratio_at_most("bytes_changed", changed, 0.0);
}

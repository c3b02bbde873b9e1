//! Promises about huge pages without bloat. The kernel's ways are set up as a knowing engineer would do it, and the
//! best of them counts.

use crate::report::Report;

use super::{
    BYTES_CHANGED, coverage, fairness, fault, graph, overhead, programs, redis, requests, rocksdb,
    sources, svm, web,
};
use crate::promise::{Bound, Figures, Promise, judge, over};

const COWSLIP: &str = "cowslip";
const BASE: &str = "thp-never";
const ALWAYS: &str = "thp-always";
/// Variants of `thp-always`.
const DEFRAG: [&str; 3] = [fault::DEFAULT, fault::DEFER, fault::DIRECT];
const PROMOTERS: [&str; 3] = [coverage::COLLAPSE, coverage::KHUGEPAGED, coverage::EAGER];
/// The server of `khugepaged-eager` has an equally quiet time before.
const QUIET: [&str; 2] = [COWSLIP, "khugepaged-eager"];

pub(crate) const PROMISES: [Promise; 19] = [
    Promise {
        name: "memory_after_delete_cowslip_over_base",
        bound: Bound::AtMost(1.03),
        value: |it| over(held(it, COWSLIP), held(it, BASE)),
    },
    Promise {
        name: "get_throughput_small_values_cowslip_over_thp_always",
        bound: Bound::AtLeast(0.98),
        value: |it| in_turns(it, redis::PIPELINED, redis::TLB),
    },
    Promise {
        name: "get_throughput_cowslip_over_base",
        bound: Bound::AtLeast(1.1),
        value: |it| {
            let gets =
                |name| it.find(name, redis::PIPELINED, "p50", it.size_bytes, Some(redis::TLB));
            over(gets(COWSLIP), gets(BASE))
        },
    },
    Promise {
        name: "fault_p999_cowslip_over_best_thp_always",
        bound: Bound::AtMost(1.25),
        value: |it| {
            let best = it.lowest(&DEFRAG, |defrag| touch(it, ALWAYS, Some(defrag)));
            over(touch(it, COWSLIP, None), best)
        },
    },
    Promise {
        name: "request_p999_during_promotion_over_quietest",
        bound: Bound::AtMost(1.5),
        value: |it| {
            let half = it.size_bytes / 2;
            let request =
                |name: &str, when| it.find(name, requests::METRIC, "p999", half, Some(when));
            let quiet = it.lowest(&QUIET, |name| request(name, requests::QUIET));
            over(request(COWSLIP, requests::PROMOTING), quiet)
        },
    },
    Promise {
        name: "fair_share_error",
        bound: Bound::AtMost(0.1),
        value: |it| it.find(COWSLIP, fairness::METRIC, "value", it.size_bytes / 2, None),
    },
    Promise {
        name: "daemon_cpu_of_a_core",
        bound: Bound::AtMost(0.01),
        value: |it| it.find(COWSLIP, overhead::CPU, "value", it.size_bytes, Some(overhead::BUSY)),
    },
    Promise {
        name: "busy_process_slowdown",
        bound: Bound::AtMost(1.01),
        value: |it| it.find(COWSLIP, overhead::SLOWDOWN, "p50", it.size_bytes, None),
    },
    Promise {
        name: "coverage_seconds_cowslip_over_fastest",
        bound: Bound::AtMost(6.0),
        value: |it| {
            let best = it.lowest(&PROMOTERS, |name| covered(it, name, None));
            over(covered(it, COWSLIP, Some(coverage::ONCE)), best)
        },
    },
    Promise {
        name: "sparse_memory_run_over_native",
        bound: Bound::AtMost(1.15),
        value: |it| under_run(it, programs::SPARSE),
    },
    Promise {
        name: "memory_after_delete_run_over_native",
        bound: Bound::AtMost(1.15),
        value: |it| under_run(it, programs::DELETED),
    },
    Promise {
        name: "web_p999_cowslip_over_always",
        bound: Bound::AtMost(0.6),
        value: |it| over(page(it, COWSLIP), page(it, ALWAYS)),
    },
    Promise {
        name: "web_requests_cowslip_over_base",
        bound: Bound::AtLeast(1.1),
        value: |it| {
            let rate = |name| it.find(name, web::REQUESTS, "value", it.size_bytes, None);
            over(rate(COWSLIP), rate(BASE))
        },
    },
    Promise {
        name: "svm_time_cowslip_over_base",
        bound: Bound::AtMost(1.0),
        value: |it| over(time(it, svm::NAME, COWSLIP), time(it, svm::NAME, BASE)),
    },
    Promise {
        name: "graph_time_cowslip_over_base",
        bound: Bound::AtMost(1.0),
        value: |it| over(time(it, graph::NAME, COWSLIP), time(it, graph::NAME, BASE)),
    },
    Promise {
        name: "rocksdb_reads_cowslip_over_base",
        bound: Bound::AtLeast(1.0),
        value: |it| {
            let metric = format!("{}_{}", rocksdb::NAME, rocksdb::READS);
            let rate = |name| it.find(name, &metric, "p50", it.size_bytes, None);
            over(rate(COWSLIP), rate(BASE))
        },
    },
    Promise {
        name: "build_slowdown",
        bound: Bound::AtMost(1.01),
        value: |it| slowdown(it, &sources::BUILD),
    },
    Promise {
        name: "grep_slowdown",
        bound: Bound::AtMost(1.01),
        value: |it| slowdown(it, &sources::GREP),
    },
    Promise {
        name: "bytes_changed",
        bound: Bound::AtMost(0.0),
        value: |it| it.sum(&[BYTES_CHANGED]),
    },
];

/// Memory of a server after most of its values were deleted.
fn held(it: &Figures<'_>, name: &str) -> Option<f64> {
    let settled = format!("{}, {}", redis::BLOAT, redis::SETTLED);
    it.find(name, redis::MEMORY, "value", it.size_bytes, Some(&settled))
}

/// Memory of a program under `cowslip run`, over that natively.
fn under_run(it: &Figures<'_>, variant: &str) -> Option<f64> {
    let held = |name| it.find(name, programs::MEMORY, "value", it.size_bytes, Some(variant));
    over(held(programs::RUN), held(programs::NATIVE))
}

fn page(it: &Figures<'_>, name: &str) -> Option<f64> {
    it.find(name, web::REQUEST, "p999", it.size_bytes, None)
}

fn touch(it: &Figures<'_>, name: &str, variant: Option<&str>) -> Option<f64> {
    it.find(name, fault::METRIC, "p999", it.size_bytes / 2, variant)
}

fn covered(it: &Figures<'_>, name: &str, variant: Option<&str>) -> Option<f64> {
    it.find(name, coverage::METRIC, "value", it.size_bytes, variant)
}

/// The time of a program from its start to its end.
fn time(it: &Figures<'_>, program: &str, name: &str) -> Option<f64> {
    it.find(name, &format!("{program}_time"), "p50", it.size_bytes, None)
}

/// Processor time with the daemon over that without.
fn slowdown(it: &Figures<'_>, work: &sources::Work) -> Option<f64> {
    it.find(COWSLIP, overhead::SLOWDOWN, "p50", None::<u64>, Some(work.name))
}

/// Cowslip's rate over that of `thp-always`, measured in turns.
fn in_turns(it: &Figures<'_>, metric: &str, variant: &str) -> Option<f64> {
    let metric = format!("{metric}_{}", redis::OVER_ALWAYS);
    it.find(COWSLIP, &metric, "p50", it.size_bytes, Some(variant))
}

pub(super) fn push(report: &mut Report, size_bytes: u64) {
    judge(report, size_bytes, &PROMISES);
}

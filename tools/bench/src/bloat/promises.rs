//! Promises about huge pages without bloat. The kernel's ways are set up as a knowing engineer would do it, and the
//! best of them counts.

use crate::report::Report;

use super::{BYTES_CHANGED, overhead, programs, redis, requests, web};
use crate::promise::{Bound, Figures, Promise, judge, over};

const COWSLIP: &str = "cowslip";
const BASE: &str = "thp-never";
/// The server of `khugepaged-eager` has an equally quiet time before.
const QUIET: [&str; 2] = [COWSLIP, "khugepaged-eager"];

pub(crate) const PROMISES: [Promise; 7] = [
    Promise {
        name: "memory_after_delete_cowslip_over_base",
        bound: Bound::AtMost(1.03),
        value: |it| over(held(it, COWSLIP), held(it, BASE)),
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
        name: "daemon_cpu_of_a_core",
        bound: Bound::AtMost(0.01),
        value: |it| it.find(COWSLIP, overhead::CPU, "value", it.size_bytes, Some(overhead::BUSY)),
    },
    Promise {
        name: "memory_after_delete_run_over_native",
        bound: Bound::AtMost(1.15),
        value: |it| under_run(it, programs::DELETED),
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

pub(super) fn push(report: &mut Report, size_bytes: u64) {
    judge(report, size_bytes, &PROMISES);
}

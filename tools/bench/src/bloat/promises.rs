//! Promises about huge pages without bloat. The kernel's ways are set up as a knowing engineer would do it, and the
//! best of them counts.

use crate::report::Report;

use super::{BYTES_CHANGED, overhead, programs, redis, requests, scarce, web};
use crate::promise::{Bound, Figures, Promise, judge, over};

const COWSLIP: &str = "cowslip";
const BASE: &str = "thp-never";
/// The server of `khugepaged-eager` has an equally quiet time before.
const QUIET: [&str; 2] = [COWSLIP, "khugepaged-eager"];

pub(crate) const PROMISES: [Promise; 9] = [
    Promise {
        name: "memory_after_delete_cowslip_over_base",
        bound: Bound::AtMost(1.03),
        value: |figures| over(held(figures, COWSLIP), held(figures, BASE)),
    },
    Promise {
        name: "get_throughput_cowslip_over_base",
        bound: Bound::AtLeast(1.1),
        value: |figures| {
            let gets = |name| {
                figures.find(name, redis::PIPELINED, "p50", figures.size_bytes, Some(redis::TLB))
            };
            over(gets(COWSLIP), gets(BASE))
        },
    },
    Promise {
        name: "request_p999_during_promotion_over_quietest",
        bound: Bound::AtMost(1.5),
        value: |figures| {
            let half = figures.size_bytes / 2;
            let request =
                |name: &str, when| figures.find(name, requests::METRIC, "p999", half, Some(when));
            let quiet = figures.lowest(&QUIET, |name| request(name, requests::QUIET));
            over(request(COWSLIP, requests::PROMOTING), quiet)
        },
    },
    Promise {
        name: "daemon_cpu_of_a_core",
        bound: Bound::AtMost(0.01),
        value: |figures| {
            figures.find(COWSLIP, overhead::CPU, "value", figures.size_bytes, Some(overhead::BUSY))
        },
    },
    Promise {
        name: "memory_after_delete_run_over_native",
        bound: Bound::AtMost(1.15),
        value: |figures| under_run(figures, programs::DELETED),
    },
    Promise {
        name: "web_requests_cowslip_over_base",
        bound: Bound::AtLeast(1.1),
        value: |figures| {
            let rate = |name| figures.find(name, web::REQUESTS, "value", figures.size_bytes, None);
            over(rate(COWSLIP), rate(BASE))
        },
    },
    Promise {
        name: "scarce_share_error",
        bound: Bound::AtMost(0.1),
        value: |figures| {
            worst_scarce(|variant| scarce_row(figures, COWSLIP, scarce::ERROR, variant))
        },
    },
    Promise {
        name: "scarce_steps_base_over_cowslip",
        bound: Bound::AtMost(0.91),
        value: |figures| {
            worst_scarce(|variant| {
                let steps = |name| scarce_row(figures, name, scarce::STEPS, variant);
                over(steps(BASE), steps(COWSLIP))
            })
        },
    },
    Promise {
        name: "bytes_changed",
        bound: Bound::AtMost(0.0),
        value: |figures| figures.sum(&[BYTES_CHANGED]),
    },
];

/// Memory of a server after most of its values were deleted.
fn held(figures: &Figures<'_>, name: &str) -> Option<f64> {
    let settled = format!("{}, {}", redis::BLOAT, redis::SETTLED);
    figures.find(name, redis::MEMORY, "value", figures.size_bytes, Some(&settled))
}

fn scarce_row(figures: &Figures<'_>, name: &str, metric: &str, variant: &str) -> Option<f64> {
    figures.find(name, metric, "value", figures.size_bytes, Some(variant))
}

/// The largest of two and of eight programs.
fn worst_scarce(value: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let all = scarce::NUMBERS.map(|number| value(&scarce::variant(number)));
    all.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max_by(f64::total_cmp)
}

/// Memory of a program under `cowslip run`, over that natively.
fn under_run(figures: &Figures<'_>, variant: &str) -> Option<f64> {
    let held =
        |name| figures.find(name, programs::MEMORY, "value", figures.size_bytes, Some(variant));
    over(held(programs::RUN), held(programs::NATIVE))
}

pub(super) fn push(report: &mut Report, size_bytes: u64) {
    judge(report, size_bytes, &PROMISES);
}

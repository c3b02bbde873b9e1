//! Promises about snapshots.

use crate::report::{Report, Row};
use cowslip::units::ByteCount;

use super::{GIB, coverage, curve, stall};
use crate::promise::{Bound, Figures, Promise, judge, over};

const COWSLIP: &str = "cowslip";
const FORK_PAUSE: &str = "fork_pause";
const FORKS: [&str; 3] = ["fork-4k", "fork-thp", "fork-hugetlb"];
const STOCK: [&str; 2] = ["fork-4k", "fork-thp"];
/// Forks with memory on huge pages while it is shared.
const HUGE_FORKS: [&str; 2] = ["fork-thp", "fork-hugetlb"];

pub(crate) const PROMISES: [Promise; 7] = [
    Promise {
        name: "view_pause_8GiB_best_over_cowslip",
        bound: Bound::AtLeast(2.0),
        value: |figures| {
            let pause = |name: &str, variant: Option<&str>| {
                figures.find(name, "view_pause", "p50", 8 * GIB, variant)
            };
            let best = figures.lowest(&["4k", "thp"], |pages| pause("uffd-wp", Some(pages)));
            over(best, pause(COWSLIP, None))
        },
    },
    Promise {
        name: "fork_first_write_best_huge_over_cowslip",
        bound: Bound::AtLeast(4.0),
        value: |figures| {
            let best = figures.lowest(&HUGE_FORKS, |name| first_write(figures, name));
            over(best, first_write(figures, COWSLIP))
        },
    },
    Promise {
        name: "huge_coverage_after_10_snapshots",
        bound: Bound::AtLeast(0.99),
        value: |figures| {
            let last = format!("snapshot {}", coverage::SNAPSHOTS);
            figures.find(COWSLIP, coverage::COVERAGE, "value", figures.size_bytes, Some(&last))
        },
    },
    Promise {
        name: "lost_updates",
        bound: Bound::AtMost(0.0),
        value: |figures| figures.find(COWSLIP, stall::LOST, "value", figures.size_bytes, None),
    },
    Promise {
        name: "write_all_in_order_cpu_over_hugetlb",
        bound: Bound::AtMost(1.5),
        value: |figures| {
            let cpu = |name| curve_row(figures, name, curve::CPU, curve::Case::ALL_IN_ORDER);
            over(cpu(COWSLIP), cpu("fork-hugetlb"))
        },
    },
    Promise {
        name: "write_many_at_random_cpu_over_best",
        bound: Bound::AtMost(1.15),
        value: |figures| {
            let ratios = curve::Case::random(MANY_PERCENT).filter_map(|case| {
                let cpu = |name: &str| curve_row(figures, name, curve::CPU, case);
                over(cpu(COWSLIP), STOCK.into_iter().filter_map(cpu).reduce(f64::min))
            });
            ratios.reduce(f64::max)
        },
    },
    Promise {
        name: "write_extra_bytes_over_native",
        bound: Bound::AtMost(1.0),
        value: |figures| {
            let over_native = |case: curve::Case| {
                let bytes = |name| curve_row(figures, name, curve::EXTRA, case);
                // Leaves room for page tables and the like.
                let native = bytes("fork-hugetlb")?.max(bytes("fork-4k")? * 1.1);
                Some(bytes(COWSLIP)? / native)
            };
            curve::Case::every().filter_map(over_native).reduce(f64::max)
        },
    },
];

/// Written pages count as many from this percentage on.
const MANY_PERCENT: u32 = 10;

fn curve_row(figures: &Figures<'_>, name: &str, metric: &str, case: curve::Case) -> Option<f64> {
    figures.find(name, metric, "p50", curve::bytes(figures.size_bytes), Some(&case.variant()))
}

fn first_write(figures: &Figures<'_>, name: &str) -> Option<f64> {
    figures.find(name, "fork_first_write", "p50", figures.size_bytes, None)
}

pub(super) fn push(report: &mut Report, size_bytes: u64) {
    judge(report, size_bytes, &PROMISES);
    if report.find(COWSLIP, FORK_PAUSE, "p50", Some(8 * GIB), None).is_none() {
        report.notes.extend(largest_pause(report));
    }
    if size_bytes < GIB {
        report.notes.push("the size is below 1 GiB: ratios are of what was measured".to_owned());
    }
}

/// A note in place of the promise about 8 GiB, if they were not measured.
fn largest_pause(report: &Report) -> Option<String> {
    let is_pause = |row: &&Row| row.system == COWSLIP && row.metric == FORK_PAUSE;
    let size = report.rows.iter().filter(is_pause).filter_map(|row| row.size_bytes).max()?;
    let paused = |name| report.find(name, FORK_PAUSE, "p50", Some(size), None);
    let best = FORKS.iter().filter_map(|name| paused(name)).min_by(f64::total_cmp)?;
    let ratio = best / paused(COWSLIP)?;
    let size = ByteCount(size);
    Some(format!(
        "8 GiB were not measured; at {size} the best fork pauses {ratio:.1} times as long"
    ))
}

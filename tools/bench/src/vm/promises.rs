//! Promises about guest memory.

use super::freeze::{HELD, HUGE, TEMPLATE, WRITE_PROTECTION, WRONG};
use super::{COWSLIP, clones, lazy, roll_back};
use crate::promise::{Bound, Figures, Promise, judge, over};
use crate::report::Report;

const MS: f64 = 1e6;

fn ours(figures: &Figures<'_>, metric: &str, stat: &str, variant: Option<&str>) -> Option<f64> {
    figures.find(COWSLIP, metric, stat, figures.size_bytes, variant)
}

pub(crate) const PROMISES: [Promise; 11] = [
    Promise {
        name: "vcpu_held_by_freeze_mean_ms",
        bound: Bound::AtMost(0.5),
        value: |figures| ours(figures, HELD, "mean", None).map(|ns| ns / MS),
    },
    Promise {
        name: "vcpu_held_by_freeze_worst_ms",
        bound: Bound::AtMost(2.0),
        value: |figures| ours(figures, HELD, "max", None).map(|ns| ns / MS),
    },
    Promise {
        name: "vcpu_held_over_write_protection",
        bound: Bound::AtMost(0.1),
        value: |figures| {
            let held = |name: &str| figures.find(name, HELD, "mean", figures.size_bytes, None);
            over(held(COWSLIP), held(WRITE_PROTECTION))
        },
    },
    Promise {
        name: "template_of_running_guest_ms",
        bound: Bound::AtMost(1.0),
        value: |figures| ours(figures, TEMPLATE, "p50", None).map(|ns| ns / MS),
    },
    Promise {
        name: "guest_views_wrong",
        bound: Bound::AtMost(0.0),
        value: |figures| ours(figures, WRONG, "value", None),
    },
    Promise {
        name: "guest_huge_share_after_ten_snapshots",
        bound: Bound::AtLeast(0.99),
        value: |figures| ours(figures, HUGE, "value", None),
    },
    Promise {
        name: "hundred_guest_clones_ms",
        bound: Bound::AtMost(50.0),
        value: |figures| ours(figures, clones::ALL, "value", None).map(|ns| ns / MS),
    },
    Promise {
        name: "guest_clone_at_first_MiB",
        bound: Bound::AtMost(0.1),
        value: |figures| {
            let bytes = ours(figures, clones::MEMORY, "mean", Some(clones::AT_FIRST));
            bytes.map(|bytes| bytes / crate::MIB as f64)
        },
    },
    Promise {
        name: "guest_roll_back_tenth_ms",
        bound: Bound::AtMost(60.0),
        value: |figures| {
            let variant = Some(roll_back::SCATTERED);
            ours(figures, roll_back::ROLL_BACK, "p50", variant).map(|ns| ns / MS)
        },
    },
    Promise {
        name: "guest_lazy_first_page_ms",
        bound: Bound::AtMost(0.2),
        value: |figures| {
            ours(figures, lazy::FIRST_PAGE, "p50", Some(lazy::SERVED)).map(|ns| ns / MS)
        },
    },
    Promise {
        name: "guest_lazy_all_over_tmpfs_mapping",
        bound: Bound::AtMost(1.2),
        value: |figures| {
            let mapped = figures.find(lazy::MAPPED, lazy::ALL, "p50", figures.size_bytes, None);
            over(ours(figures, lazy::ALL, "p50", Some(lazy::SERVED)), mapped)
        },
    },
];

pub(super) fn push(report: &mut Report, size_bytes: u64) {
    judge(report, size_bytes, &PROMISES);
}

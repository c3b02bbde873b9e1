//! Promises about restores and saves.

use crate::report::Report;

use super::{read, save, workers, working_set};
use crate::promise::{Bound, Figures, Promise, judge, over};

const HOT: Option<&str> = Some("hot");
const UFFD: [&str; 8] = [
    "uffd-copy-4k-1cpu",
    "uffd-copy-4k-2cpu",
    "uffd-copy-2m-1cpu",
    "uffd-copy-2m-2cpu",
    "uffd-copy-hugetlb-1cpu",
    "uffd-copy-hugetlb-2cpu",
    "uffd-move-2m-1cpu",
    "uffd-move-2m-2cpu",
];
/// Methods that copy all of a file into memory on huge pages.
const READ: [&str; 4] =
    ["read-huge-1cpu", "read-huge-2cpu", "read-huge-direct-1cpu", "read-huge-direct-2cpu"];
/// Methods that map pages that are in memory already.
const MAPPED: [&str; 4] = ["mmap", "mmap-populate", "mmap-huge", "tmpfs-huge"];
/// Methods that bring memory in when it is touched, from a cold page cache.
const COLD: [&str; 5] =
    ["mmap", "mmap-huge", "uffd-copy-2m-2cpu", "uffd-copy-hugetlb-2cpu", "uffd-move-2m-2cpu"];

pub(crate) const PROMISES: [Promise; 8] = [
    Promise {
        name: "restore_total_best_uffd_over_hybrid",
        bound: Bound::AtLeast(1.2),
        value: |figures| {
            over(figures.lowest(&UFFD, |name| total(figures, name)), total(figures, "hybrid"))
        },
    },
    Promise {
        name: "restore_total_hybrid_over_best_read",
        bound: Bound::AtMost(1.3),
        value: |figures| {
            over(total(figures, "hybrid"), figures.lowest(&READ, |name| total(figures, name)))
        },
    },
    Promise {
        name: "restore_total_resident_arena_over_best_mapping",
        bound: Bound::AtMost(1.2),
        value: |figures| {
            let best = figures.lowest(&MAPPED, |name| total(figures, name));
            over(total(figures, "resident-arena"), best)
        },
    },
    Promise {
        name: "working_set_cold_best_over_recorded",
        bound: Bound::AtLeast(1.0),
        value: |figures| {
            let whole = |name: &str, variant| {
                figures.find(name, working_set::WHOLE, "p50", figures.size_bytes, Some(variant))
            };
            let best = figures.lowest(&COLD, |name| whole(name, working_set::UNRECORDED));
            over(best, whole("hybrid", working_set::RECORDED))
        },
    },
    Promise {
        name: "save_time_best_over_cowslip",
        bound: Bound::AtLeast(0.9),
        value: |figures| {
            let took = |name: &str| figures.find(name, save::SAVE, "p50", figures.size_bytes, None);
            over(figures.lowest(&[save::DD, save::CP], took), took("cowslip"))
        },
    },
    Promise {
        name: save::INCREMENTAL,
        bound: Bound::AtMost(1.1),
        value: |figures| {
            figures.find("cowslip", save::INCREMENTAL, "value", figures.size_bytes, None)
        },
    },
    Promise {
        name: "hundred_workers_memory_each_over_image",
        bound: Bound::AtMost(0.02),
        value: |figures| {
            let variant = Some(workers::HUNDRED);
            figures.find("resident", workers::MEMORY, "value", figures.size_bytes, variant)
        },
    },
    Promise {
        name: "lost_or_wrong_bytes",
        bound: Bound::AtMost(0.0),
        value: |figures| figures.sum(&[read::WRONG, working_set::WRONG]),
    },
];

fn total(figures: &Figures<'_>, name: &str) -> Option<f64> {
    figures.find(name, read::TOTAL, "p50", figures.size_bytes, HOT)
}

pub(super) fn push(report: &mut Report, size_bytes: u64) {
    judge(report, size_bytes, &PROMISES);
}

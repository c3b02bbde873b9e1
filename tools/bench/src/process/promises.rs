//! Promises about whole processes.

use super::{COPIES, COWSLIP, FORK, PAUSE, hold, warm};
use crate::promise::{Bound, Promise, judge, over};
use crate::report::Report;

const MS: f64 = 1e6;

pub(crate) const PROMISES: [Promise; 3] = [
    Promise {
        name: "hold_42_threads_ms_beyond_fork",
        bound: Bound::AtMost(6.0),
        value: |figures| {
            let pause = |name| figures.find(name, PAUSE, "p50", None::<u64>, Some(hold::OF_MANY));
            Some((pause(COWSLIP)? - pause(FORK)?) / MS)
        },
    },
    Promise {
        name: "eight_copies_of_8GiB_ms",
        bound: Bound::AtMost(100.0),
        value: |figures| {
            let variant = Some(hold::OF_MUCH_MEMORY);
            figures.find(COWSLIP, COPIES, "p50", None::<u64>, variant).map(|ns| ns / MS)
        },
    },
    Promise {
        name: "warm_first_output_over_spawn",
        bound: Bound::AtMost(0.1),
        value: |figures| {
            let took = |name| figures.find(name, warm::FIRST_OUTPUT, "p50", None::<u64>, None);
            over(took(COWSLIP), took(warm::SPAWN))
        },
    },
];

pub(super) fn push(report: &mut Report) {
    judge(report, 0, &PROMISES);
}

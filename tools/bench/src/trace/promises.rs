//! Promises about tracing.

use crate::report::Report;

use super::{COWSLIP, PERF, lost, overhead};
use crate::promise::{Bound, Promise, judge, over};

/// A lower rate is not 500,000 a second.
const RATE_LEAST: f64 = 475_000.0;

pub(crate) const PROMISES: [Promise; 2] = [
    Promise {
        name: "trace_overhead_over_perf",
        bound: Bound::AtMost(1.2),
        value: |figures| {
            let time = |name| figures.find(name, overhead::METRIC, "p50", None::<u64>, None);
            let plain = time(overhead::PLAIN)?;
            let over_plain = |name| Some(time(name)? - plain).filter(|&ns| ns > 0.0);
            over(over_plain(COWSLIP), over_plain(PERF))
        },
    },
    // A machine that faults more slowly is measured at its full speed.
    Promise {
        name: "events_lost_up_to_500k_per_second",
        bound: Bound::AtMost(0.0),
        value: |figures| figures.find(COWSLIP, lost::LOST, "value", None::<u64>, Some(lost::PACED)),
    },
];

pub(super) fn push(report: &mut Report) {
    let rate = report.find(COWSLIP, lost::RATE, "value", None, Some(lost::PACED));
    if let Some(rate) = rate.filter(|&rate| rate < RATE_LEAST) {
        let note = format!("500,000 faults a second were not reached, but {rate:.0}");
        report.notes.push(note);
    }
    judge(report, 0, &PROMISES);
}

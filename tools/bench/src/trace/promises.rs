//! Promises about tracing.

use crate::report::Report;

use super::{COWSLIP, PERF, lost, overhead, picture};
use crate::promise::{Bound, Figures, Promise, judge, over};

/// A lower rate is not 500,000 a second.
const RATE_LEAST: f64 = 475_000.0;

pub(crate) const PROMISES: [Promise; 7] = [
    Promise {
        name: "trace_overhead_over_perf",
        bound: Bound::AtMost(1.2),
        value: |it| {
            let time = |name| it.find(name, overhead::METRIC, "p50", None::<u64>, None);
            let plain = time(overhead::PLAIN)?;
            let over_plain = |name| Some(time(name)? - plain).filter(|&ns| ns > 0.0);
            over(over_plain(COWSLIP), over_plain(PERF))
        },
    },
    Promise {
        name: "events_lost_at_500k_per_second",
        bound: Bound::AtMost(0.0),
        value: |it| {
            let is_paced =
                value(it, lost::RATE, Some(lost::PACED)).is_some_and(|it| it >= RATE_LEAST);
            value(it, lost::LOST, Some(lost::PACED)).filter(|_| is_paced)
        },
    },
    Promise {
        name: "events_lost_by_force",
        bound: Bound::AtLeast(1.0),
        value: |it| value(it, lost::LOST, Some(lost::FORCED)),
    },
    Promise {
        name: "faults_unaccounted_by_force",
        bound: Bound::AtMost(0.0),
        value: |it| value(it, lost::UNACCOUNTED, Some(lost::FORCED)),
    },
    Promise {
        name: "html_seconds_1M",
        bound: Bound::AtMost(10.0),
        value: |it| value(it, picture::SECONDS, None).map(|ns| ns / 1e9),
    },
    Promise {
        name: "html_bytes_1M",
        bound: Bound::AtMost(15e6),
        value: |it| value(it, picture::BYTES, None),
    },
    Promise {
        name: "first_paint_seconds_1M",
        bound: Bound::AtMost(3.0),
        value: |it| value(it, picture::PAINT, None).map(|ns| ns / 1e9),
    },
];

fn value(it: &Figures<'_>, metric: &str, variant: Option<&str>) -> Option<f64> {
    it.find(COWSLIP, metric, "value", None::<u64>, variant)
}

pub(super) fn push(report: &mut Report) {
    let rate = report.find(COWSLIP, lost::RATE, "value", None, Some(lost::PACED));
    if let Some(rate) = rate.filter(|&rate| rate < RATE_LEAST) {
        let note = format!("500,000 faults a second were not reached, but {rate:.0}");
        report.notes.push(note);
    }
    judge(report, 0, &PROMISES);
}

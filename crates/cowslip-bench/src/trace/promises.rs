//! The figures that promises are made about.

use cowslip_report::Report;

use super::{COWSLIP, PERF, lost, overhead, picture};

/// Less than this is not 500,000 a second.
const RATE_LEAST: f64 = 475_000.0;

pub(super) fn push(report: &mut Report) {
    let time = |rival| report.find(rival, overhead::METRIC, "p50", None, None);
    let over_plain = |rival| Some(time(rival)? - time(overhead::PLAIN)?).filter(|&ns| ns > 0.0);
    let over_perf = || Some(over_plain(COWSLIP)? / over_plain(PERF)?);
    let value = |metric, variant| report.find(COWSLIP, metric, "value", None, variant);
    let paced = Some(lost::PACED);
    let rate = value(lost::RATE, paced);
    let lost_events = value(lost::LOST, paced).filter(|_| rate.is_some_and(|it| it >= RATE_LEAST));
    let unaccounted = value(lost::UNACCOUNTED, Some(lost::FORCED));
    let forced = value(lost::LOST, Some(lost::FORCED));
    let seconds = |metric| value(metric, None).map(|ns| ns / 1e9);
    let (html, bytes, paint) =
        (seconds(picture::SECONDS), value(picture::BYTES, None), seconds(picture::PAINT));
    let over_perf = over_perf();
    if let Some(rate) = rate.filter(|&rate| rate < RATE_LEAST) {
        let note = format!("500,000 faults a second were not reached, but {rate:.0}");
        report.notes.push(note);
    }

    report.ratio_at_most("trace_overhead_over_perf", over_perf, 1.2);
    report.ratio_at_most("events_lost_at_500k_per_second", lost_events, 0.0);
    report.ratio_at_least("events_lost_by_force", forced, 1.0);
    report.ratio_at_most("faults_unaccounted_by_force", unaccounted, 0.0);
    report.ratio_at_most("html_seconds_1M", html, 10.0);
    report.ratio_at_most("html_bytes_1M", bytes, 15e6);
    report.ratio_at_most("first_paint_seconds_1M", paint, 3.0);
}

//! The figures that promises are made about.

use cowslip::units::ByteCount;
use cowslip_report::{Report, Row};

use super::{GIB, coverage, pause, recovery, stall, writes};

const COWSLIP: &str = "cowslip";

pub(super) fn push(report: &mut Report, size_bytes: u64) {
    let over = |above: Option<f64>, below: Option<f64>| Some(above? / below?);

    let paused = |rival, size| report.find(rival, pause::METRIC, "p50", Some(size), None);
    let pause_at_8 = over(paused("fork-4k", 8 * GIB), paused(COWSLIP, 8 * GIB));
    let pause_growth = over(paused(COWSLIP, 8 * GIB), paused(COWSLIP, GIB));

    let size = Some(size_bytes);
    let first = |rival| report.find(rival, writes::FIRST, "p50", size, None);
    let first_hugetlb = over(first("fork-hugetlb"), first(COWSLIP));
    let first_4k = over(first(COWSLIP), first("fork-4k"));

    let last = format!("snapshot {}", coverage::SNAPSHOTS);
    let huge = report.find(COWSLIP, coverage::COVERAGE, "value", size, Some(&last));
    let read = |phase| report.find(COWSLIP, coverage::READ_TO_CONTROL, "p50", size, Some(phase));
    let read = over(read("after"), read("before"));

    let recovered =
        |rival| report.find(rival, recovery::METRIC, "p50", size, Some(recovery::WHOLE));
    let recovered = over(recovered("fork-thp"), recovered(COWSLIP));

    let stalled = report.find(COWSLIP, stall::METRIC, "p999", size, None);
    let stalled = over(stalled, first("fork-hugetlb"));
    let lost = report.find(COWSLIP, stall::LOST, "value", size, None);

    report.ratio_at_least("pause_8GiB_fork4k_over_cowslip", pause_at_8, 300.0);
    report.ratio_at_most("pause_cowslip_8GiB_over_1GiB", pause_growth, 2.0);
    report.ratio_at_least("first_write_p50_hugetlb_over_cowslip", first_hugetlb, 50.0);
    report.ratio_at_most("first_write_p50_cowslip_over_fork4k", first_4k, 1.5);
    report.ratio_at_least("huge_coverage_after_10_snapshots", huge, 0.99);
    report.ratio_between("random_read_after_over_before", read, 0.97, 1.03);
    report.ratio_at_least("huge_recovery_collapse_over_thaw", recovered, 8.0);
    report.ratio_at_most("thaw_writer_stall_p999_over_hugetlb_first_write_p50", stalled, 0.6);
    report.ratio_at_most("lost_updates", lost, 0.0);
    if pause_at_8.is_none() {
        report.notes.extend(largest_pause(report));
    }
    if size_bytes < GIB {
        report.notes.push("the size is below 1 GiB: ratios are of what was measured".to_owned());
    }
}

/// What stands in for the promise about 8 GiB where they were not measured.
fn largest_pause(report: &Report) -> Option<String> {
    let is_pause = |row: &&Row| row.rival == COWSLIP && row.metric == pause::METRIC;
    let size = report.rows.iter().filter(is_pause).filter_map(|row| row.size_bytes).max()?;
    let paused = |rival| report.find(rival, pause::METRIC, "p50", Some(size), None);
    let ratio = paused("fork-4k")? / paused(COWSLIP)?;
    let size = ByteCount(size);
    Some(format!("8 GiB were not measured; at {size} fork-4k pauses {ratio:.0} times as long"))
}

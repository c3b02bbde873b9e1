//! The figures that promises are made about.

use cowslip_report::Report;

use super::{read, save, working_set};

pub(super) fn push(report: &mut Report, bytes: u64) {
    let size = Some(bytes);
    let over = |above: Option<f64>, below: Option<f64>| Some(above? / below?);
    let total = |rival| report.find(rival, read::TOTAL, "p50", size, Some("hot"));
    let hybrid = total("hybrid");
    let uffd4k = over(total("uffd-copy-4k"), hybrid);
    let uffd2m = over(total("uffd-copy-2m"), hybrid);
    let eager = over(hybrid, total("eager"));
    let resident = over(total("map"), total("resident"));
    let first_ns = report.find("hybrid", read::FIRST_TOUCH, "p50", size, Some("hot"));
    let set = |variant| report.find("hybrid", working_set::WHOLE, "p50", size, Some(variant));
    let recorded = over(set(working_set::UNRECORDED), set(working_set::RECORDED));
    let huge = report.find("hybrid", read::COVERAGE, "value", size, Some("hot"));
    let saving = |rival| report.find(rival, save::SAVE, "p50", size, None);
    let saving = over(saving(save::DD), saving("cowslip"));
    let increment = report.find("cowslip", save::INCREMENTAL, "value", size, None);
    let is_wrong = |metric: &str| metric == read::WRONG || metric == working_set::WRONG;
    let wrong = report.rows.iter().filter(|row| is_wrong(&row.metric));
    let wrong = wrong.filter_map(|row| row.value).reduce(|a, b| a + b);

    report.ratio_at_least("restore_total_uffd4k_over_hybrid", uffd4k, 60.0);
    report.ratio_at_least("restore_total_uffd2m_over_hybrid", uffd2m, 2.5);
    report.ratio_at_most("restore_total_hybrid_over_eager", eager, 1.3);
    report.ratio_at_least("restore_total_mapfile_over_resident", resident, 1.3);
    report.ratio_at_most("first_touch_ms_hybrid", first_ns.map(|ns| ns / 1e6), 1.0);
    report.ratio_at_least("working_set_time_unrecorded_over_recorded", recorded, 3.0);
    report.ratio_at_least("huge_coverage_after_hybrid", huge, 0.99);
    report.ratio_at_least("save_throughput_over_dd", saving, 0.9);
    report.ratio_at_most(save::INCREMENTAL, increment, 1.1);
    report.ratio_at_most("lost_or_wrong_bytes", wrong, 0.0);
}

//! The figures that promises are made about.

use cowslip_report::Report;

use super::{GIB, Options, afl, latency, library, overhead, sqlite, template, writes};

const COWSLIP: &str = "cowslip";
const STOCK: &str = "fork-4k";

pub(super) fn push(report: &mut Report, options: &Options) {
    let size_bytes = options.working_bytes() as u64;
    let over = |above: Option<f64>, below: Option<f64>| Some(above? / below?);
    let in_a_row = |rival, size| {
        report.find(rival, latency::METRIC, "p50", Some(size), Some(latency::IN_A_ROW))
    };
    let growth = over(in_a_row(COWSLIP, 8 * GIB), in_a_row(COWSLIP, GIB));
    let tables = |rival| report.find(rival, latency::CHILD_TABLES, "value", Some(GIB), None);
    let tables = over(tables(STOCK), tables(COWSLIP));
    let written = Some(writes::size_bytes(options));
    let random = |rival| report.find(rival, writes::RANDOM, "p50", written, None);
    let random = over(random(COWSLIP), random(STOCK));
    let execs = |rival| report.find(rival, sqlite::METRIC, "value", Some(size_bytes), None);
    let execs = over(execs(COWSLIP), execs(STOCK));
    let typical = Some(template::TYPICAL);
    let rate = report.find(COWSLIP, template::RATE, "value", Some(size_bytes), typical);
    let reset = report.find(COWSLIP, template::RESET, "p50", Some(size_bytes), typical);
    let beside = report.find(STOCK, library::METRIC, "p50", Some(size_bytes), Some(library::AGAIN));
    let reset = over(beside, reset);
    let fuzzed = |rival| report.find(rival, afl::EXECS, "p50", Some(size_bytes), None);
    let fuzzed = over(fuzzed(COWSLIP), fuzzed(STOCK));
    let malloc = |rival, threads| report.find(rival, overhead::MALLOC, "p50", None, Some(threads));
    let malloc = overhead::THREADS.map(|(_, n)| over(malloc(COWSLIP, n), malloc(STOCK, n)));
    let malloc = malloc.into_iter().flatten().reduce(f64::max);
    let gets = |rival| report.find(rival, overhead::REDIS, "p50", Some(size_bytes), None);
    let gets = over(gets(STOCK), gets(COWSLIP));
    let other_edges = report.find(COWSLIP, afl::OTHER_EDGES, "value", Some(size_bytes), None);
    let fork = over(in_a_row(STOCK, GIB), in_a_row(COWSLIP, GIB));

    report.ratio_at_least("fork_1GiB_stock4k_over_cowslip", fork, 60.0);
    report.ratio_at_most("fork_8GiB_over_1GiB_cowslip", growth, 1.5);
    report.ratio_at_least("sqlite_fork_server_execs_cowslip_over_stock", execs, 30.0);
    report.ratio_at_least("afl_execs_cowslip_over_stock", fuzzed, 15.0);
    report.ratio_at_most("afl_inputs_with_other_edges", other_edges, 0.0);
    report.ratio_at_most("overhead_malloc_cowslip_over_stock", malloc, 1.02);
    report.ratio_at_most("overhead_redis_get_cowslip_over_stock", gets, 1.02);
    report.ratio_at_least("child_vmpte_stock_over_cowslip", tables, 15.0);
    report.ratio_at_most("random_write_mean_cowslip_over_fork4k", random, 1.3);
    report.ratio_at_least("template_resets_per_second", rate, 3000.0);
    report.ratio_at_least("template_reset_over_stock_fork", reset, 50.0);
}

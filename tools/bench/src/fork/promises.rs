//! Promises about forks, resets, and the overhead of `cowslip run`.

use crate::report::Report;

use super::{GIB, Options, afl, latency, overhead, template};
use crate::promise::{Bound, Figures, Promise, judge, over};

const COWSLIP: &str = "cowslip";
const STOCK: [&str; 2] = ["fork-4k", "fork-thp"];
/// The malloc that `cowslip run` bundles, without the rest of it.
const JEMALLOC: &str = "jemalloc";

pub(crate) const PROMISES: [Promise; 7] = [
    Promise {
        name: "fork_8GiB_best_over_cowslip",
        bound: Bound::AtLeast(12.0),
        value: |figures| forks(figures, 8 * GIB, latency::IN_A_ROW),
    },
    Promise {
        name: "first_fork_8GiB_best_over_cowslip",
        bound: Bound::AtLeast(3.0),
        value: |figures| forks(figures, 8 * GIB, latency::FIRST),
    },
    Promise {
        name: "afl_execs_cowslip_over_best",
        bound: Bound::AtLeast(1.2),
        value: |figures| {
            let execs =
                |name: &str| figures.find(name, afl::EXECS, "p50", figures.size_bytes, None);
            over(execs(COWSLIP), figures.highest(&STOCK, execs))
        },
    },
    Promise {
        name: "afl_inputs_with_other_edges",
        bound: Bound::AtMost(0.0),
        value: |figures| figures.find(COWSLIP, afl::OTHER_EDGES, "value", afl::EDGES_BYTES, None),
    },
    Promise {
        name: "overhead_malloc_cowslip_over_best",
        bound: Bound::AtMost(1.1),
        value: |figures| {
            let worst = overhead::THREADS.map(|(_, threads)| {
                let took = |name: &str| {
                    let (name, variant) = match name {
                        JEMALLOC => (STOCK[0], format!("{threads}, {name}")),
                        _ => (name, threads.to_owned()),
                    };
                    figures.find(name, overhead::MALLOC, "p50", None::<u64>, Some(&variant))
                };
                over(took(COWSLIP), figures.lowest(&[STOCK[0], STOCK[1], JEMALLOC], took))
            });
            worst.into_iter().flatten().reduce(f64::max)
        },
    },
    Promise {
        name: "overhead_redis_get_best_over_cowslip",
        bound: Bound::AtMost(1.05),
        value: |figures| {
            let gets =
                |name: &str| figures.find(name, overhead::REDIS, "p50", figures.size_bytes, None);
            over(figures.highest(&STOCK, gets), gets(COWSLIP))
        },
    },
    Promise {
        name: "template_cycles_cowslip_over_tmpfs",
        bound: Bound::AtLeast(0.7),
        value: |figures| {
            let typical = Some(template::TYPICAL);
            let rate =
                |name| figures.find(name, template::CYCLES, "value", figures.size_bytes, typical);
            over(rate(COWSLIP), rate(template::MAPPED))
        },
    },
];

fn fork(figures: &Figures<'_>, name: &str, size: u64, variant: &str) -> Option<f64> {
    figures.find(name, latency::METRIC, "p50", size, Some(variant))
}

/// The best stock fork over Cowslip's.
fn forks(figures: &Figures<'_>, size: u64, variant: &str) -> Option<f64> {
    let best = figures.lowest(&STOCK, |name| fork(figures, name, size, variant));
    over(best, fork(figures, COWSLIP, size, variant))
}

pub(super) fn push(report: &mut Report, options: &Options) {
    judge(report, options.working_bytes() as u64, &PROMISES);
}

//! Promises about a save. Each figure is the worst of root's and an ordinary user's server, of all loads and sizes that
//! were measured.

use crate::report::Report;

use super::CLIENTS;
use super::cycle::PHASES;
use super::rows;
use super::workload::PACED;
use crate::demo::redis::setup::{COWSLIP, COWSLIP_USER, STOCK, STOCK_MTHP, STOCK_THP};
use crate::promise::{Bound, Figures, Promise, judge};

const OURS: [&str; 2] = [COWSLIP, COWSLIP_USER];
const BASELINES: [&str; 3] = [STOCK, STOCK_THP, STOCK_MTHP];
const BEFORE: &str = PHASES[0];
const DURING: &str = PHASES[1];
const SOON: &str = PHASES[2];
const CYCLE: &str = PHASES[4];

/// A baseline that answers fewer requests before the save does not keep the steady pace, and does not count.
const LEAST_PACE: f64 = PACED as f64 * 0.95;

pub(crate) const PROMISES: [Promise; 7] = [
    Promise {
        name: "save_cpu_a_request_cycle_over_best",
        bound: Bound::AtMost(1.05),
        value: |figures| most(figures, rows::CPU, CYCLE, any),
    },
    Promise {
        name: "save_writes_a_second_over_best",
        bound: Bound::AtLeast(0.95),
        value: |figures| {
            let phases = [DURING, SOON];
            let least = phases
                .into_iter()
                .filter_map(|phase| least(figures, rows::REQUESTS, phase, writes));
            least.reduce(f64::min)
        },
    },
    Promise {
        name: "save_p99_writes_over_best",
        bound: Bound::AtMost(1.3),
        value: |figures| most(figures, rows::P99, "p50", writes),
    },
    Promise {
        name: "save_longest_writes_over_best",
        bound: Bound::AtMost(0.9),
        value: |figures| most(figures, rows::SLOWEST, "p50", writes),
    },
    Promise {
        name: "save_p99_paced_over_best",
        bound: Bound::AtMost(1.0),
        value: |figures| most(figures, rows::P99, "p50", paced),
    },
    Promise {
        name: "save_longest_paced_over_best",
        bound: Bound::AtMost(1.0),
        value: |figures| most(figures, rows::SLOWEST, "p50", paced),
    },
    Promise {
        name: "save_memory_paced_over_best",
        bound: Bound::AtMost(1.3),
        value: |figures| most(figures, rows::EXTRA, "max", paced),
    },
];

fn any(_: &str) -> bool {
    true
}

fn paced(load: &str) -> bool {
    load.contains("paced")
}

fn writes(load: &str) -> bool {
    load.contains("writes")
}

/// The highest ratio of our figures to the lowest of the baselines'.
fn most(figures: &Figures<'_>, metric: &str, stat: &str, load: fn(&str) -> bool) -> Option<f64> {
    worst(figures, (metric, stat), load, 1.0)
}

/// The lowest ratio of our figures to the highest of the baselines'.
fn least(figures: &Figures<'_>, metric: &str, stat: &str, load: fn(&str) -> bool) -> Option<f64> {
    worst(figures, (metric, stat), load, -1.0)
}

/// The ratio farthest beyond the best of the baselines: above it or (-1) below it.
fn worst(
    figures: &Figures<'_>,
    (metric, stat): (&str, &str),
    load: fn(&str) -> bool,
    direction: f64,
) -> Option<f64> {
    let mut worst: Option<(f64, String)> = None;
    for ours in OURS {
        for (size, variant) in figures.variants(ours, metric) {
            let of = |name| figures.find(name, metric, stat, size, variant);
            let baselines = BASELINES.into_iter().filter(|name| {
                let rate = figures.find(name, rows::REQUESTS, BEFORE, size, variant);
                !variant.is_some_and(paced) || rate.is_none_or(|rate| rate >= LEAST_PACE)
            });
            let baselines = baselines.filter_map(|name| Some((name, of(name)?)));
            let best = baselines.min_by(|a, b| (direction * a.1).total_cmp(&(direction * b.1)));
            let (Some(own), Some((name, best))) = (of(ours), best) else { continue };
            if !variant.is_some_and(load) {
                continue;
            }
            let ratio = own / best;
            if worst.as_ref().is_none_or(|(known, _)| direction * ratio > direction * known) {
                let variant = variant.unwrap_or_default();
                worst = Some((ratio, format!("{name}; {ours}, {variant}")));
            }
        }
    }
    let (ratio, told) = worst?;
    figures.tell(told);
    Some(ratio)
}

pub(super) fn push(report: &mut Report) {
    judge(report, 0, &PROMISES);
    let slow = report.rows.iter().filter(|row| {
        let is_paced = row.variant.as_deref().is_some_and(paced);
        let is_slow = row.value.is_some_and(|rate| rate < LEAST_PACE);
        is_paced && is_slow && row.metric == rows::REQUESTS && row.stat == BEFORE
    });
    let mut slow: Vec<_> = slow.map(|row| row.system.clone()).collect();
    slow.dedup();
    if !slow.is_empty() {
        let slow = slow.join(", ");
        let note = format!("{PACED} requests a second were too many, before any save, for {slow}");
        report.notes.push(note);
    }
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    report.notes.push(format!(
        "{CLIENTS} clients, in one thread, share {processors} processors with the server and its child: client_processors is what they took"
    ));
}

#[cfg(test)]
mod tests {
    use crate::report::Row;

    use super::*;

    #[test]
    fn the_worst_of_all_loads_and_users_is_held_against_the_best_of_the_same_load() {
        let mut report = Report::new("save", serde_json::Map::new());
        let mut add = |system, metric: &str, stat, variant, value| {
            let row = Row::new(system, metric, stat, value, "").size_bytes(1 << 30);
            report.row(row.variant(variant));
        };
        // This baseline does not keep the pace.
        add(STOCK_MTHP, rows::CPU, CYCLE, "paced", 1.0);
        add(STOCK_MTHP, rows::REQUESTS, BEFORE, "paced", 18_000.0);
        for (load, stock, thp, ours, user) in
            [("writes", 10.0, 12.0, 9.0, 10.0), ("paced", 30.0, 20.0, 22.0, 24.0)]
        {
            for (system, value) in
                [(STOCK, stock), (STOCK_THP, thp), (COWSLIP, ours), (COWSLIP_USER, user)]
            {
                add(system, rows::CPU, CYCLE, load, value);
                add(system, rows::REQUESTS, DURING, load, value * 1000.0);
            }
        }
        push(&mut report);
        let value = |name: &str| {
            report.ratios.iter().find(|ratio| ratio.name == name).and_then(|ratio| ratio.value)
        };
        assert_eq!(value("save_cpu_a_request_cycle_over_best"), Some(1.2));
        assert_eq!(value("save_writes_a_second_over_best"), Some(0.75));
        assert_eq!(value("save_p99_paced_over_best"), None);
        let note = report.notes.iter().find(|note| note.starts_with("the best")).unwrap();
        assert!(
            note.contains("save_cpu_a_request_cycle_over_best (stock-thp; cowslip-user, paced)"),
            "{note}"
        );
    }
}

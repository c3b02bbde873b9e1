//! The difference of the wall time as a table of parts that add up to it.

use cowslip_compare::stats::Estimate;
use cowslip_compare::{Entry, FaultKind, Faults, TimePart, TimeSplit};
use cowslip_report::units::{fixed, human};

use super::format;
use super::words::called;

/// Cells of a row: its name, good, bad, difference, interval.
pub(super) type Cells = [String; 5];

/// Rows, the head first.
pub(super) fn rows(split: &TimeSplit, alpha: f64) -> Vec<Cells> {
    let all = || split.ledger.iter().chain([&split.wall]);
    let greatest =
        all().flat_map(|entry| [entry.means.0, entry.means.1]).fold(0.0, |a, b| b.abs().max(a));
    let unit = Unit::new(greatest);
    let overlaps =
        split.ledger.iter().any(|entry| entry.part == TimePart::Overlap && !is_nought(entry));
    let head = match overlaps {
        true => format!("{} a run, of all threads", unit.name),
        false => format!("{} a run", unit.name),
    };
    let interval = format!("{} % interval", format::level(alpha));
    let mut rows =
        vec![[head, "good".to_owned(), "bad".to_owned(), "difference".to_owned(), interval]];
    for entry in all().filter(|entry| entry.part == TimePart::Wall || !is_nought(entry)) {
        rows.push(unit.row(entry));
        if matches!(entry.part, TimePart::System | TimePart::Running) {
            rows.extend(split.faults.iter().map(faults));
        }
        if entry.part == TimePart::Overlap {
            let waits = split.lock_wait.iter().filter(|waits| !is_nought(waits));
            rows.extend(waits.map(|waits| {
                let [_, rest @ ..] = unit.row(waits);
                let [good, bad, added, interval] = rest;
                ["  others meanwhile waiting for locks".to_owned(), good, bad, added, interval]
            }));
        }
    }
    rows
}

fn is_nought(entry: &Entry) -> bool {
    entry.means == (0.0, 0.0)
}

/// One unit for all rows, so that they add up as they are read.
pub(super) struct Unit {
    pub(super) name: &'static str,
    per_second: f64,
    decimals: usize,
}

impl Unit {
    pub(super) fn new(greatest: f64) -> Self {
        let (name, per_second, decimals) = match greatest {
            seconds if seconds >= 1.0 => ("s", 1.0, 3),
            seconds if seconds >= 0.01 => ("ms", 1e3, 1),
            _ => ("ms", 1e3, 3),
        };
        Self { name, per_second, decimals }
    }

    fn row(&self, entry: &Entry) -> Cells {
        self.cells(label(entry.part), entry.means, &entry.added)
    }

    pub(super) fn cells(&self, name: &str, means: (f64, f64), added: &Estimate) -> Cells {
        let plain = |seconds: f64| fixed(seconds * self.per_second, self.decimals);
        let signed = |seconds: f64| format::signed(seconds * self.per_second, self.decimals);
        [name.to_owned(), plain(means.0), plain(means.1), signed(added.value), range(added, signed)]
    }
}

fn label(part: TimePart) -> &'static str {
    match part {
        TimePart::Asleep => "asleep otherwise",
        _ => called(part),
    }
}

fn range(estimate: &Estimate, text: impl Fn(f64) -> String) -> String {
    let range = estimate.interval.map(|(low, high)| format!("{} to {}", text(low), text(high)));
    range.unwrap_or_default()
}

fn faults(faults: &Faults) -> Cells {
    let name = match faults.kind {
        FaultKind::Minor => "  minor faults",
        FaultKind::Major => "  major faults",
        FaultKind::Huge => "  huge page faults, machine",
    };
    counts(name, faults.means, faults.seconds.map(|cost| cost.value))
}

/// Counts of both sides, and the seconds that the difference takes.
pub(super) fn counts(name: &str, (good, bad): (f64, f64), seconds: Option<f64>) -> Cells {
    let count = |count: f64| human(count.abs(), "1/s").trim_end_matches("/s").replace(' ', "");
    let sign = |value: f64| if value < 0.0 { "-" } else { "+" };
    let cost = |seconds: f64| format!("about {}{}", sign(seconds), format::seconds(seconds.abs()));
    [
        name.to_owned(),
        count(good),
        count(bad),
        format!("{}{}", sign(bad - good), count(bad - good)),
        seconds.map(cost).unwrap_or_default(),
    ]
}

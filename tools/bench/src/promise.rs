//! Promises about speed: a name, a bound, and the rows of a report that make up the value.
//!
//! Each bench has a table of promises. A promise that compares with others compares with the best of the baselines of
//! the same run.

use std::cell::{Cell, RefCell};
use std::fmt;

use crate::report::Report;

/// A promise.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) name: &'static str,
    pub(crate) bound: Bound,
    pub(crate) value: fn(&Figures<'_>) -> Option<f64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// The distance of `value` beyond the bound, as a share of it: at most zero if it holds.
    pub(crate) fn excess(self, value: f64) -> f64 {
        let (beyond, bound) = match self {
            Self::AtLeast(bound) => (bound - value, bound),
            Self::AtMost(bound) => (value - bound, bound),
        };
        if bound == 0.0 { beyond } else { beyond / bound }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, "≥ {bound}"),
            Self::AtMost(bound) => write!(f, "≤ {bound}"),
        }
    }
}

/// The rows of a report, by the names that promises give them.
#[derive(Debug)]
pub(crate) struct Figures<'a> {
    report: &'a Report,
    /// Memory of the measurements that do not vary its size.
    pub(crate) size_bytes: u64,
    /// True if the host was fit during all measurements looked up so far, if that is known.
    host_fit: Cell<Option<bool>>,
    /// The best baselines so far.
    best: RefCell<Vec<String>>,
}

impl Figures<'_> {
    /// Like [`Report::find`].
    pub(crate) fn find(
        &self,
        name: &str,
        metric: &str,
        stat: &str,
        size_bytes: impl Into<Option<u64>>,
        variant: Option<&str>,
    ) -> Option<f64> {
        let row = self.report.find_row(name, metric, stat, size_bytes.into(), variant)?;
        if let Some(host) = row.host {
            self.host_fit.set(Some(self.host_fit.get().unwrap_or(true) && host.host_fit));
        }
        row.value
    }

    /// The lowest of these baselines' values, which is the hardest to be below.
    pub(crate) fn lowest(
        &self,
        baselines: &[&str],
        value: impl Fn(&str) -> Option<f64>,
    ) -> Option<f64> {
        let values = baselines.iter().filter_map(|name| Some((*name, value(name)?)));
        let (name, value) = values.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        self.tell(name.to_owned());
        Some(value)
    }

    /// Notes which baseline was the best.
    pub(crate) fn tell(&self, best: String) {
        self.best.borrow_mut().push(best);
    }

    /// The sizes and variants of `name`'s rows of a metric.
    pub(crate) fn variants(&self, name: &str, metric: &str) -> Vec<(Option<u64>, Option<&str>)> {
        let rows = self.report.rows.iter().filter(|row| row.system == name && row.metric == metric);
        let mut found: Vec<_> = rows.map(|row| (row.size_bytes, row.variant.as_deref())).collect();
        found.dedup();
        found
    }

    /// Like [`Self::lowest`], for the highest.
    pub(crate) fn highest(
        &self,
        baselines: &[&str],
        value: impl Fn(&str) -> Option<f64>,
    ) -> Option<f64> {
        self.lowest(baselines, |name| value(name).map(|value| -value)).map(|value| -value)
    }

    /// The sum of all rows of these metrics.
    pub(crate) fn sum(&self, metrics: &[&str]) -> Option<f64> {
        let rows = self.report.rows.iter().filter(|row| metrics.contains(&row.metric.as_str()));
        rows.filter_map(|row| row.value).reduce(|a, b| a + b)
    }
}

/// `above` over `below`, if both were measured.
pub(crate) fn over(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    Some(above? / below?)
}

/// Adds a ratio for each promise, and says which baselines were the best.
pub(crate) fn judge(report: &mut Report, size_bytes: u64, promises: &[Promise]) {
    let mut best_of_all = Vec::new();
    for promise in promises {
        let host_fit = Cell::new(None);
        let figures = Figures { report, size_bytes, host_fit, best: RefCell::default() };
        let value = (promise.value)(&figures);
        let host_fit = value.and(figures.host_fit.get());
        let best = figures.best.into_inner().join(", ");
        if value.is_some() && !best.is_empty() {
            best_of_all.push(format!("{} ({best})", promise.name));
        }
        match promise.bound {
            Bound::AtLeast(low) => report.ratio_at_least(promise.name, value, low),
            Bound::AtMost(high) => report.ratio_at_most(promise.name, value, high),
        }
        if let Some(ratio) = report.ratios.last_mut() {
            ratio.host_fit = host_fit;
        }
    }
    if !best_of_all.is_empty() {
        report.notes.push(format!("the best baselines: {}", best_of_all.join("; ")));
    }
}

#[cfg(test)]
mod tests {
    use crate::report::{HostState, Row};

    use super::*;

    const PROMISES: [Promise; 2] = [
        Promise {
            name: "pause_best_over_cowslip",
            bound: Bound::AtLeast(2.0),
            value: |figures| {
                let pause =
                    |name: &str| figures.find(name, "pause", "p50", figures.size_bytes, None);
                over(figures.lowest(&["fork-4k", "fork-thp", "absent"], pause), pause("cowslip"))
            },
        },
        Promise {
            name: "lost",
            bound: Bound::AtMost(0.0),
            value: |figures| figures.find("cowslip", "lost", "value", None::<u64>, None),
        },
    ];

    #[test]
    fn the_best_baseline_counts_and_an_unfit_host_is_told() {
        let mut report = Report::new("cow", serde_json::Map::new());
        let host = |host_fit| HostState { touch_ns_per_page: 1.0, stolen_share: 0.0, host_fit };
        for (name, ns, host_fit) in
            [("fork-4k", 900.0, true), ("fork-thp", 30.0, false), ("cowslip", 10.0, true)]
        {
            let row = Row::new(name, "pause", "p50", ns, "ns").size_bytes(64);
            report.row(Row { host: Some(host(host_fit)), ..row });
        }
        report.row(Row::new("cowslip", "lost", "value", 0.0, "count"));
        judge(&mut report, 64, &PROMISES);
        let [pause, lost] = &report.ratios[..] else { panic!("{:?}", report.ratios) };
        assert_eq!(
            (pause.value, pause.holds, pause.host_fit),
            (Some(3.0), Some(true), Some(false))
        );
        assert_eq!((lost.value, lost.holds, lost.host_fit), (Some(0.0), Some(true), None));
        assert_eq!(report.notes, ["the best baselines: pause_best_over_cowslip (fork-thp)"]);
    }
}

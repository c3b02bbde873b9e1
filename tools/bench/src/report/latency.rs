//! Latencies of one kind of event, kept as a histogram.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::results::{Report, Row};

/// A slower event counts as this slow.
const SLOWEST_NS: u64 = 3_600_000_000_000;

/// Three significant digits between a nanosecond and an hour; recording never allocates.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// A histogram without events.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, SLOWEST_NS, 3).expect("the bounds are constants"))
    }

    /// Records one event.
    pub fn record(&mut self, latency: Duration) {
        self.record_ns(u64::try_from(latency.as_nanos()).unwrap_or(SLOWEST_NS));
    }

    /// Records one event, in nanoseconds.
    pub fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Records `n` events of the same latency.
    pub fn record_many(&mut self, ns: u64, n: u64) {
        self.0.saturating_record_n(ns, n);
    }

    /// Converts latencies of senders that wait for one answer before the next request into those of senders with a
    /// steady pace. A sender that waits long misses the requests that it would have sent meanwhile ("coordinated
    /// omission"). The pace is the median latency.
    pub fn at_steady_pace(&self) -> Self {
        Self(self.0.clone_correct(self.quantile_ns(0.5).max(1)))
    }

    /// Adds all events of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// The latency in ns that this share (0 to 1) of the events did not exceed.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share)
    }

    /// The slowest event.
    pub fn max_ns(&self) -> u64 {
        self.0.max()
    }

    /// The mean of all events.
    pub fn mean_ns(&self) -> f64 {
        self.0.mean()
    }

    /// The number of events.
    pub fn n(&self) -> u64 {
        self.0.len()
    }

    /// Adds the rows `p50`, `p99`, `p999`, `max` and `mean`, or a skipped one if nothing was recorded.
    pub fn push(
        &self,
        report: &mut Report,
        system: &str,
        metric: &str,
        size_bytes: Option<u64>,
        variant: Option<&str>,
    ) {
        if self.n() == 0 {
            let row = Row::skipped(system, metric, "no event was recorded");
            return report.row(row.size_bytes(size_bytes).variant(variant));
        }
        let stats = [
            ("p50", self.quantile_ns(0.5) as f64),
            ("p99", self.quantile_ns(0.99) as f64),
            ("p999", self.quantile_ns(0.999) as f64),
            ("max", self.max_ns() as f64),
            ("mean", self.mean_ns()),
        ];
        for (stat, ns) in stats {
            let row = Row::new(system, metric, stat, ns, "ns");
            report.row(row.size_bytes(size_bytes).variant(variant).n(self.n()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[test]
    fn percentiles_of_a_ramp_in_two_halves() {
        let (mut low, mut high) = (Latencies::new(), Latencies::new());
        (1..=5_000).for_each(|us| low.record_ns(us * 1_000));
        (5_001..=10_000).for_each(|us| high.record(Duration::from_micros(us)));
        low.merge(&high);
        let mut report = Report::new("cow", Map::new());
        low.push(&mut report, "cowslip", "pause", Some(64), None);

        for (stat, expected) in
            [("p50", 5.0e6), ("p99", 9.9e6), ("p999", 9.99e6), ("max", 1.0e7), ("mean", 5.0e6)]
        {
            let found = report.find("cowslip", "pause", stat, Some(64), None).unwrap();
            assert!((found / expected - 1.0).abs() < 0.002, "{stat}: {found}");
        }
        assert_eq!(report.rows[0].n, Some(10_000));
    }

    #[test]
    fn a_stall_counts_for_all_who_would_have_come_meanwhile() {
        let mut latencies = Latencies::new();
        (0..9_990).for_each(|_| latencies.record_ns(1_000));
        latencies.record_ns(1_000_000);
        assert!(latencies.quantile_ns(0.999) < 1_010);
        let steady = latencies.at_steady_pace();
        assert_eq!(steady.n(), 9_990 + 1_000);
        assert!(steady.quantile_ns(0.99) > 880_000, "{}", steady.quantile_ns(0.99));
    }

    #[test]
    fn extremes_saturate_and_emptiness_is_told() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::MAX);
        latencies.record_ns(0);
        assert!(latencies.max_ns() >= SLOWEST_NS && latencies.n() == 2);

        let mut report = Report::new("cow", Map::new());
        Latencies::new().push(&mut report, "cowslip", "pause", None, Some("dense"));
        assert!(report.rows[0].skipped.is_some());
    }
}

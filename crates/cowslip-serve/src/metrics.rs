//! Counters of the server, as text in Prometheus' format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) requests: AtomicU64,
    pub(crate) templates: AtomicU64,
    pub(crate) lent: AtomicU64,
    pub(crate) refused_peers: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) not_held: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) failed_loads: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

impl Metrics {
    pub(crate) fn text(&self, images: u64, held_bytes: u64, most_bytes: u64) -> String {
        let counters = [
            ("requests_total", "Requests of clients.", &self.requests),
            ("templates_total", "Images handed to clients.", &self.templates),
            ("lent_total", "Images lent to clients while they were loaded.", &self.lent),
            (
                "refused_peers_total",
                "Clients of other users, who got nothing.",
                &self.refused_peers,
            ),
            ("busy_total", "Clients beyond the limit, who got nothing.", &self.busy),
            ("not_held_total", "Requests for images that are not served.", &self.not_held),
            ("loads_total", "Images loaded.", &self.loads),
            ("failed_loads_total", "Images that could not be loaded.", &self.failed_loads),
            ("dropped_total", "Images given up to make room.", &self.dropped),
        ];
        let gauges = [
            ("images", "Images in memory.", images),
            ("held_bytes", "Memory of these images.", held_bytes),
            ("most_bytes", "What they may have.", most_bytes),
        ];
        let counters =
            counters.map(|(name, help, count)| (name, help, "counter", count.load(Relaxed)));
        let gauges = gauges.map(|(name, help, value)| (name, help, "gauge", value));
        let mut text = String::new();
        for (name, help, kind, value) in counters.into_iter().chain(gauges) {
            let name = format!("cowslip_serve_{name}");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        text
    }
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

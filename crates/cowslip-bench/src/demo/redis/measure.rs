//! Latencies and rates from the writers' logs.

use std::collections::BTreeMap;

use cowslip_report::Latencies;

use super::cut::Write;
use super::load::Log;

/// Width of a bucket of the latency series.
const BUCKET_NS: u64 = 10_000_000;

/// The requests of one span of time.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    /// Of every request that was under way in the span.
    pub(crate) latencies: Latencies,
    /// Requests acknowledged a second.
    pub(crate) ops: f64,
}

impl Window {
    pub(crate) fn of(logs: &[Log], from_ns: u64, to_ns: u64) -> Self {
        let mut latencies = Latencies::new();
        let mut acknowledged = 0_u64;
        for write in answered(logs) {
            if write.sent_ns < to_ns && write.acked_ns > from_ns {
                latencies.record_ns(write.acked_ns - write.sent_ns);
                acknowledged += u64::from(write.acked_ns <= to_ns);
            }
        }
        let seconds = (to_ns - from_ns) as f64 / 1e9;
        Self { latencies, ops: acknowledged as f64 / seconds }
    }
}

/// The longest latency of the requests sent in each 10 ms: seconds since `from_ns`, nanoseconds.
pub(crate) fn peaks(logs: &[Log], from_ns: u64) -> Vec<(f64, f64)> {
    let mut buckets = BTreeMap::new();
    for write in answered(logs) {
        let bucket = write.sent_ns.saturating_sub(from_ns) / BUCKET_NS;
        let peak = buckets.entry(bucket).or_insert(0);
        *peak = (*peak).max(write.acked_ns - write.sent_ns);
    }
    let seconds = |bucket| (bucket * BUCKET_NS) as f64 / 1e9;
    buckets.into_iter().map(|(bucket, peak)| (seconds(bucket), peak as f64)).collect()
}

fn answered(logs: &[Log]) -> impl Iterator<Item = &Write> {
    logs.iter().flat_map(|log| &log.writes).filter(|write| write.acked_ns != u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs() -> Vec<Log> {
        let spans = [(0, 90), (100, 20_000_100), (20_000_200, 20_000_300), (20_000_400, u64::MAX)];
        let write = |(sent_ns, acked_ns)| Write { slot: 0, sequence: 1, sent_ns, acked_ns };
        vec![Log { writes: spans.map(write).to_vec(), ..Log::default() }]
    }

    #[test]
    fn a_window_has_what_was_under_way_and_counts_what_was_acknowledged() {
        let window = Window::of(&logs(), 1_000, 20_000_250);
        assert_eq!(window.latencies.n(), 2);
        assert!((window.ops - 50.0).abs() < 0.01, "{}", window.ops);
    }

    #[test]
    fn a_stall_shows_where_it_began() {
        assert_eq!(peaks(&logs(), 0), [(0.0, 2e7), (0.02, 100.0)]);
    }
}

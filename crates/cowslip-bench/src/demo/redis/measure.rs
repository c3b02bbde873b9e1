//! Latencies, rates and processor time from the writers' logs.

use cowslip_report::Latencies;

use super::consistency::Write;
use super::load::Log;

/// The requests of one span of time.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    /// Of every request that was under way in the span.
    pub(crate) latencies: Latencies,
    /// Requests acknowledged a second.
    pub(crate) ops: f64,
    /// Processor time of the server, all its threads, for each of them.
    pub(crate) cpu_ns_a_request: f64,
}

impl Window {
    /// Of a span in which the server used `cpu_ns`.
    pub(crate) fn of(logs: &[Log], from_ns: u64, to_ns: u64, cpu_ns: u64) -> Self {
        let mut latencies = Latencies::new();
        let mut acknowledged = 0_u64;
        for write in answered(logs) {
            if write.sent_ns < to_ns && write.acked_ns > from_ns {
                latencies.record_ns(write.acked_ns - write.sent_ns);
                acknowledged += u64::from(write.acked_ns <= to_ns);
            }
        }
        let seconds = (to_ns - from_ns) as f64 / 1e9;
        Self {
            latencies,
            ops: acknowledged as f64 / seconds,
            cpu_ns_a_request: cpu_ns as f64 / acknowledged.max(1) as f64,
        }
    }
}

/// The latency of the slowest request that was under way at some time of a span.
pub(crate) fn slowest(logs: &[Log], from_ns: u64, to_ns: u64) -> u64 {
    let under_way = answered(logs).filter(|it| it.sent_ns < to_ns && it.acked_ns > from_ns);
    under_way.map(|write| write.acked_ns - write.sent_ns).max().unwrap_or(0)
}

/// The same of each step of a span: so a stall is as wide as it is high. (A chart by the time of sending would show the
/// beginning of a stall alone, as nobody sends anything while all wait.)
pub(crate) fn slowest_of_each(logs: &[Log], from_ns: u64, to_ns: u64, step_ns: u64) -> Vec<u64> {
    let mut steps = vec![0; ((to_ns - from_ns) / step_ns) as usize];
    for write in answered(logs).filter(|it| it.sent_ns < to_ns && it.acked_ns >= from_ns) {
        let latency_ns = write.acked_ns - write.sent_ns;
        let [first, last] =
            [write.sent_ns, write.acked_ns].map(|ns| (ns.max(from_ns) - from_ns) / step_ns);
        for slowest in steps.iter_mut().take(last as usize + 1).skip(first as usize) {
            *slowest = latency_ns.max(*slowest);
        }
    }
    steps
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
        let window = Window::of(&logs(), 1_000, 20_000_250, 5_000);
        assert_eq!(window.latencies.n(), 2);
        assert!((window.ops - 50.0).abs() < 0.01, "{}", window.ops);
        assert_eq!(window.cpu_ns_a_request, 5_000.0);
        assert_eq!(slowest(&logs(), 20_000_150, 20_000_350), 100);
        assert_eq!(slowest(&logs(), 20_000_000, 20_000_050), 20_000_000);
    }

    #[test]
    fn a_stall_is_as_wide_as_it_is_high() {
        let steps = slowest_of_each(&logs(), 0, 30_000_000, 5_000_000);
        assert_eq!(steps, [20_000_000, 20_000_000, 20_000_000, 20_000_000, 20_000_000, 0]);
        assert_eq!(slowest_of_each(&logs(), 20_000_150, 20_000_450, 100), [100, 100, 0]);
    }
}

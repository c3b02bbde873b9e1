//! Latencies, rates and processor time from the clients' logs.

use crate::report::Latencies;

use super::load::Log;

/// The requests of one span of time, or of several together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    /// Latencies of all requests that were under way in the span.
    pub(crate) latencies: Latencies,
    /// Requests that were answered in it.
    pub(crate) answered: u64,
    pub(crate) ns: u64,
    /// Processor time of the server, all its threads.
    pub(crate) cpu_ns: u64,
}

impl Window {
    /// The requests of a span in which the server used `cpu_ns`.
    pub(crate) fn new(logs: &[Log], from_ns: u64, to_ns: u64, cpu_ns: u64) -> Self {
        let mut window = Self { ns: to_ns - from_ns, cpu_ns, ..Self::default() };
        for (sent_ns, acked_ns) in requests(logs) {
            if sent_ns < to_ns && acked_ns > from_ns {
                window.latencies.record_ns(acked_ns - sent_ns);
                window.answered += u64::from(acked_ns <= to_ns);
            }
        }
        window
    }

    /// Adds another span.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.latencies.merge(&other.latencies);
        self.answered += other.answered;
        self.ns += other.ns;
        self.cpu_ns += other.cpu_ns;
    }

    /// Requests answered a second.
    pub(crate) fn ops(&self) -> f64 {
        self.answered as f64 / (self.ns as f64 / 1e9)
    }

    /// Processor time of the server for each answered request.
    pub(crate) fn cpu_ns_a_request(&self) -> f64 {
        self.cpu_ns as f64 / self.answered.max(1) as f64
    }
}

/// The times of the slowest request that was under way at some time of a span.
pub(crate) fn slowest(logs: &[Log], from_ns: u64, to_ns: u64) -> Option<(u64, u64)> {
    let under_way =
        requests(logs).filter(|(sent_ns, acked_ns)| *sent_ns < to_ns && *acked_ns > from_ns);
    under_way.max_by_key(|(sent_ns, acked_ns)| acked_ns - sent_ns)
}

/// The same for each step of a span, which makes a stall as wide as it is high. (A chart by the time of sending would
/// show only the start of a stall, because no request is sent while all clients wait.)
pub(crate) fn slowest_of_each(logs: &[Log], from_ns: u64, to_ns: u64, step_ns: u64) -> Vec<u64> {
    let mut steps = vec![0; ((to_ns - from_ns) / step_ns) as usize];
    let under_way = requests(logs).filter(|request| request.0 < to_ns && request.1 >= from_ns);
    for (sent_ns, acked_ns) in under_way {
        let latency_ns = acked_ns - sent_ns;
        let [first, last] = [sent_ns, acked_ns].map(|ns| (ns.max(from_ns) - from_ns) / step_ns);
        for slowest in steps.iter_mut().take(last as usize + 1).skip(first as usize) {
            *slowest = latency_ns.max(*slowest);
        }
    }
    steps
}

/// The number of requests that were answered in each step of a span.
pub(crate) fn answered_in_each(logs: &[Log], from_ns: u64, to_ns: u64, step_ns: u64) -> Vec<u64> {
    let mut steps = vec![0; ((to_ns - from_ns) / step_ns) as usize];
    for (_, acked_ns) in requests(logs).filter(|request| request.1 >= from_ns) {
        if let Some(answered) = steps.get_mut(((acked_ns - from_ns) / step_ns) as usize) {
            *answered += 1;
        }
    }
    steps
}

/// The times when each answered request was sent, and answered.
fn requests(logs: &[Log]) -> impl Iterator<Item = (u64, u64)> {
    let writes = logs.iter().flat_map(|log| &log.writes);
    let writes = writes.map(|write| (write.sent_ns, write.acked_ns));
    let reads = logs.iter().flat_map(|log| log.reads.iter().copied());
    writes.filter(|write| write.1 != u64::MAX).chain(reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::redis::consistency::Write;

    fn logs() -> Vec<Log> {
        let spans = [(0, 90), (100, 20_000_100), (20_000_200, 20_000_300), (20_000_400, u64::MAX)];
        let write = |(sent_ns, acked_ns)| Write { slot: 0, sequence: 1, sent_ns, acked_ns };
        vec![Log { writes: spans.map(write).to_vec(), ..Log::default() }]
    }

    #[test]
    fn a_window_has_what_was_under_way_and_counts_what_was_acknowledged() {
        let window = Window::new(&logs(), 1_000, 20_000_250, 5_000);
        assert_eq!((window.latencies.n(), window.answered), (2, 1));
        assert!((window.ops() - 50.0).abs() < 0.01, "{}", window.ops());
        assert_eq!(window.cpu_ns_a_request(), 5_000.0);
        assert_eq!(slowest(&logs(), 20_000_150, 20_000_350), Some((20_000_200, 20_000_300)));
        assert_eq!(slowest(&logs(), 20_000_000, 20_000_050), Some((100, 20_000_100)));
        assert_eq!(slowest(&logs(), 20_000_500, 20_000_600), None);
        let mut both = window.clone();
        both.merge(&Window::new(&logs(), 20_000_250, 20_000_350, 3_000));
        assert_eq!((both.latencies.n(), both.answered, both.cpu_ns), (3, 2, 8_000));
        let read = Log { reads: vec![(5, 25)], ..Log::default() };
        assert_eq!(Window::new(&[read], 10, 30, 0).latencies.max_ns(), 20);
    }

    #[test]
    fn a_stall_is_as_wide_as_it_is_high() {
        let steps = slowest_of_each(&logs(), 0, 30_000_000, 5_000_000);
        assert_eq!(steps, [20_000_000, 20_000_000, 20_000_000, 20_000_000, 20_000_000, 0]);
        assert_eq!(slowest_of_each(&logs(), 20_000_150, 20_000_450, 100), [100, 100, 0]);
        assert_eq!(answered_in_each(&logs(), 0, 30_000_000, 10_000_000), [1, 0, 2]);
    }
}

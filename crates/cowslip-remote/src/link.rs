//! A model of the link to a store, which sets the size and the number of requests. Pure.
//!
//! A request costs its latency before the first byte comes. Ranges grow until the transfer takes [`TRANSFERS`] times as
//! long. Some requests wait for their first byte, so keeping all streams busy takes more requests than streams.

use std::time::Duration;

/// A range is worth its latency if its transfer takes this many times as long.
const TRANSFERS: f64 = 8.0;
/// The longest range.
pub(crate) const LONGEST_BYTES: u64 = 32 << 20;
/// The shortest length that a range is cut to: a chunk.
pub(crate) const SHORTEST_BYTES: u64 = 2 << 20;
/// Some stores refuse more requests at once, and more would not help.
const MOST_REQUESTS: usize = 64;
/// A request is late after this many times its expected time.
const LATE: f64 = 3.0;
const LATE_LEAST: Duration = Duration::from_millis(50);
/// Assumed before the first measurement.
const FIRST_LATENCY: f64 = 0.03;
const FIRST_RATE: f64 = 100e6;
/// A request is late after this before the first answer, when nothing is known.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
/// The weight of a new measurement.
const WEIGHT: f64 = 0.2;
/// The weight of a latency above the least.
const WEIGHT_OF_MORE: f64 = 0.02;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    streams: usize,
    latency_s: f64,
    /// The latency without queueing: otherwise more requests would make a slow store slower.
    least_latency_s: f64,
    /// Bytes a second of one stream.
    rate: f64,
    is_measured: bool,
}

impl Link {
    pub(crate) fn new(streams: usize) -> Self {
        let (latency_s, rate) = (FIRST_LATENCY, FIRST_RATE);
        let least_latency_s = latency_s;
        Self { streams: streams.max(1), latency_s, least_latency_s, rate, is_measured: false }
    }

    /// Records a request: its first byte came after `latency`, and `bytes` within `transfer` after that.
    pub(crate) fn measured(&mut self, latency: Duration, bytes: u64, transfer: Duration) {
        let weight = if self.is_measured { WEIGHT } else { 1.0 };
        let latency_s = latency.as_secs_f64();
        self.latency_s += weight * (latency_s - self.latency_s);
        let rises = latency_s > self.least_latency_s && self.is_measured;
        let weight = if rises { WEIGHT_OF_MORE } else { 1.0 };
        self.least_latency_s += weight * (latency_s - self.least_latency_s);
        self.is_measured = true;
        // Bytes that came at once say nothing about the rate.
        if bytes >= SHORTEST_BYTES / 2 {
            let rate = bytes as f64 / transfer.as_secs_f64().max(1e-4);
            self.rate += weight * (rate - self.rate);
        }
    }

    pub(crate) fn streams(&self) -> usize {
        self.streams
    }

    /// The longest length of the next range.
    pub(crate) fn range_bytes(&self) -> u64 {
        let worthwhile = self.least_latency_s * TRANSFERS * self.rate;
        if !self.is_measured {
            return SHORTEST_BYTES;
        }
        (worthwhile as u64).clamp(SHORTEST_BYTES, LONGEST_BYTES)
    }

    /// The number of requests to have under way, for ranges of this length or shorter.
    pub(crate) fn requests(&self, range_bytes: u64) -> usize {
        let transfer_s = range_bytes as f64 / self.rate;
        let requests = self.streams as f64 * (self.least_latency_s + transfer_s) / transfer_s;
        (requests.round() as usize).clamp(self.streams, MOST_REQUESTS.max(self.streams))
    }

    /// The time after which requested bytes are late.
    pub(crate) fn late_after(&self, bytes: u64) -> Duration {
        if !self.is_measured {
            return FIRST_PATIENCE;
        }
        let expected = self.latency_s + bytes as f64 / self.rate;
        Duration::from_secs_f64(expected * LATE).max(LATE_LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn ranges_grow_with_latency_and_rate() {
        let mut link = Link::new(8);
        assert_eq!(link.range_bytes(), SHORTEST_BYTES);
        for _ in 0..50 {
            link.measured(25 * MS, 15_000_000, 100 * MS);
        }
        let range = link.range_bytes();
        assert!((29_000_000..31_000_000).contains(&range), "{range}: 200 ms at 150 MB/s");
        for _ in 0..50 {
            link.measured(MS / 5, 15_000_000, 100 * MS);
        }
        assert_eq!(link.range_bytes(), SHORTEST_BYTES, "nothing to be gained");
        for _ in 0..200 {
            link.measured(500 * MS, 15_000_000, 100 * MS);
        }
        assert_eq!(link.range_bytes(), LONGEST_BYTES);
    }

    #[test]
    fn short_ranges_need_more_requests_than_streams() {
        let mut link = Link::new(8);
        link.measured(25 * MS, 15_000_000, 100 * MS);
        assert_eq!(link.requests(15_000_000), 10);
        assert_eq!(link.requests(3_750_000), 16);
        assert_eq!(link.requests(1000), 64);
        assert_eq!(Link::new(100).requests(1 << 30), 100, "who asks for more streams has them");
    }

    #[test]
    fn late_is_what_takes_three_times_as_long() {
        let mut link = Link::new(8);
        assert_eq!(link.late_after(0), Duration::from_secs(1));
        link.measured(25 * MS, 15_000_000, 100 * MS);
        let late = link.late_after(15_000_000);
        assert!((374 * MS..376 * MS).contains(&late), "{late:?}");
        link.measured(Duration::ZERO, 10, Duration::ZERO);
        link.measured(Duration::ZERO, 10, Duration::ZERO);
        assert_eq!(link.late_after(10), LATE_LEAST.max(link.late_after(0)));
    }
}

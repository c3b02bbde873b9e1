//! The rate of faults over time.

use serde::Serialize;

/// The most intervals; beyond that, their length is doubled.
const MOST: usize = 512;
const SHORTEST_NS: u64 = 1_000_000;

/// Faults over time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Rate {
    /// The length of each interval, in nanoseconds.
    pub interval_ns: u64,
    /// Faults in each, from the first event on.
    pub faults: Vec<u64>,
}

impl Default for Rate {
    fn default() -> Self {
        Self { interval_ns: SHORTEST_NS, faults: Vec::new() }
    }
}

impl Rate {
    /// Adds a fault at a time after the first event.
    pub(super) fn add(&mut self, since_first_ns: u64) {
        while since_first_ns / self.interval_ns >= MOST as u64 {
            self.faults = self.faults.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.interval_ns *= 2;
        }
        let interval = (since_first_ns / self.interval_ns) as usize;
        if interval >= self.faults.len() {
            self.faults.resize(interval + 1, 0);
        }
        self.faults[interval] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_and_no_fault_is_lost() {
        let mut rate = Rate::default();
        let times: Vec<u64> = (0..10_000).map(|n: u64| n * n * 977).collect();
        times.iter().for_each(|time| rate.add(*time));
        assert_eq!(rate.faults.iter().sum::<u64>(), 10_000);
        assert!(rate.faults.len() <= MOST && rate.faults.len() > MOST / 2);
        let of_first = times.iter().filter(|time| **time < rate.interval_ns).count();
        assert_eq!(rate.faults[0], of_first as u64);
        rate.add(u64::MAX);
        assert_eq!(rate.faults.iter().sum::<u64>(), 10_001);
    }
}

//! Merges the rings of several processors into one order of time.
//!
//! A ring is nearly in order: a record that interrupts the writing of another one comes before it. A record
//! that is in no ring when a round begins has a later time, or is being written. A round therefore hands out
//! the records that are older than the beginning of the round before it.

use std::collections::VecDeque;
use std::collections::vec_deque::Drain;

use super::decode::Told;

/// Records from the rings that may not be the oldest yet.
#[derive(Debug, Default)]
pub(super) struct Merge {
    waiting: VecDeque<Told>,
    safe_ns: u64,
    round_ns: u64,
    /// The time of the last record handed out.
    pub(super) last_ns: u64,
    /// The number of records that came after a younger one was handed out, and were given its time.
    pub(super) late: u64,
}

impl Merge {
    /// Begins a round: from now on, pushed records are not older than the beginning of the round before,
    /// except late ones.
    pub(super) fn begin_round(&mut self, now_ns: u64) {
        self.safe_ns = self.round_ns;
        self.round_ns = now_ns;
    }

    pub(super) fn push(&mut self, mut told: Told) {
        if told.time_ns < self.last_ns {
            told.time_ns = self.last_ns;
            self.late += 1;
        }
        self.waiting.push_back(told);
    }

    /// The records that are certainly older than all later ones; at the end, the rest.
    pub(super) fn release(&mut self, is_end: bool) -> Drain<'_, Told> {
        // A stable sort merges runs that are in order, such as those from each ring.
        self.waiting.make_contiguous().sort_by_key(|told| told.time_ns);
        let safe_ns = if is_end { u64::MAX } else { self.safe_ns };
        let ready = self.waiting.partition_point(|told| told.time_ns < safe_ns);
        if let Some(last) = ready.checked_sub(1) {
            self.last_ns = self.waiting[last].time_ns;
        }
        self.waiting.drain(..ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::decode::RawEvent;

    fn at(time_ns: u64) -> Told {
        Told { time_ns, pid: 1, tid: 1, what: RawEvent::Exit }
    }

    fn times(merge: &mut Merge, is_end: bool) -> Vec<u64> {
        merge.release(is_end).map(|told| told.time_ns).collect()
    }

    #[test]
    fn rings_are_merged_and_nothing_overtakes() {
        let mut merge = Merge::default();
        merge.begin_round(10);
        [1, 5, 8, 2, 3, 9].map(at).into_iter().for_each(|told| merge.push(told));
        assert!(times(&mut merge, false).is_empty(), "the first round may have missed some");
        merge.begin_round(20);
        [7, 12, 11].map(at).into_iter().for_each(|told| merge.push(told));
        assert_eq!(times(&mut merge, false), [1, 2, 3, 5, 7, 8, 9]);
        merge.begin_round(30);
        merge.push(at(4));
        assert_eq!((times(&mut merge, false), merge.late), (vec![9, 11, 12], 1));
        merge.push(at(40));
        assert_eq!(times(&mut merge, true), [40]);
    }
}

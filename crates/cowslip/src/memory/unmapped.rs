//! Memory that a freeze or a thaw unmapped, and the times at which all is mapped again.

use cowslip_sys::units::VirtRange;

use super::backoff::backoff;

/// Bytes mapped in one step: other threads may wait for the mappings meanwhile.
const STEP_BYTES: usize = 8 << 20;
const FIRST_ROUND_NS: u64 = 50_000_000;
const LAST_ROUND_NS: u64 = 2_000_000_000;
/// A program that writes to a new page in less time than this writes much.
const FEW_WRITES_NS: u64 = 100_000;

/// Memory to be mapped again.
#[derive(Debug, Default)]
pub(crate) struct Unmapped {
    ranges: Vec<VirtRange>,
    pub(crate) rounds: Rounds,
}

/// The schedule by which all frozen memory is mapped again.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    pub(crate) next_ns: u64,
    delay_ns: u64,
    /// The last look: when it was, and how many private pages the process had.
    looked_ns: u64,
    pages: Option<u64>,
    /// Pages were written since the last round.
    is_behind: bool,
}

impl Rounds {
    /// Called when a look is due. True if a round must be made now.
    pub(crate) fn look(&mut self, now_ns: u64, pages: Option<u64>) -> bool {
        let is_first = self.next_ns == 0;
        let delay = backoff(&mut self.delay_ns, FIRST_ROUND_NS, LAST_ROUND_NS);
        self.next_ns = now_ns + delay.as_nanos() as u64;
        let written = pages.unwrap_or(0).saturating_sub(self.pages.unwrap_or(0));
        let few = now_ns.saturating_sub(self.looked_ns) / FEW_WRITES_NS;
        self.is_behind |= !is_first && pages != self.pages;
        (self.looked_ns, self.pages) = (now_ns, pages);
        let is_due = self.is_behind && written <= few;
        self.is_behind &= !is_due;
        is_due
    }
}

impl Unmapped {
    /// Adds a range that a freeze unmapped.
    pub(crate) fn add_frozen(&mut self, range: VirtRange) {
        self.rounds = Rounds::default();
        self.add(range);
    }

    /// Adds a range that a thaw unmapped.
    pub(crate) fn add(&mut self, range: VirtRange) {
        match self.ranges.last_mut() {
            Some(last) if last.end() == range.start => last.len += range.len,
            _ => self.ranges.push(range),
        }
    }

    /// The size of all ranges.
    pub(crate) fn bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.len).sum()
    }

    pub(crate) fn take(&mut self) -> Option<VirtRange> {
        let last = self.ranges.last_mut()?;
        let part = VirtRange::new(last.start, last.len.min(STEP_BYTES));
        *last = VirtRange::between(part.end(), last.end());
        if last.is_empty() {
            self.ranges.pop();
        }
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_round_follows_writes_when_they_have_grown_few() {
        let mut rounds = Rounds::default();
        assert!(!rounds.look(SECOND_NS, Some(100)), "nothing to compare with");
        assert!(!rounds.look(2 * SECOND_NS, Some(100)), "nothing was written");
        assert!(!rounds.look(3 * SECOND_NS, Some(100_000)), "too much at a time");
        assert!(rounds.look(4 * SECOND_NS, Some(100_000)), "made up for");
        assert!(!rounds.look(5 * SECOND_NS, Some(100_000)), "once");
        assert!(rounds.look(6 * SECOND_NS, Some(100_001)));
    }

    #[test]
    fn looks_grow_rare() {
        let mut rounds = Rounds::default();
        let delays = [1; 9].map(|now_ns| {
            rounds.look(now_ns, None);
            rounds.next_ns - now_ns
        });
        assert_eq!((delays[0], delays[1]), (FIRST_ROUND_NS, 2 * FIRST_ROUND_NS));
        assert_eq!(delays[8], LAST_ROUND_NS);
    }
}

//! Memory that a freeze or a thaw unmapped.

use cowslip_sys::units::VirtRange;

/// Memory to be mapped again.
#[derive(Debug, Default)]
pub(crate) struct Unmapped {
    ranges: Vec<VirtRange>,
}

impl Unmapped {
    /// Adds a range that a freeze or a thaw unmapped.
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

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Takes at most so many bytes of it.
    pub(crate) fn take(&mut self, most_bytes: usize) -> Option<VirtRange> {
        let last = self.ranges.last_mut()?;
        let part = VirtRange::new(last.start, last.len.min(most_bytes));
        *last = VirtRange::between(part.end(), last.end());
        if last.is_empty() {
            self.ranges.pop();
        }
        Some(part)
    }
}

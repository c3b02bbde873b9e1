//! Observed writes to frozen chunks, and the chunks that are to be moved for them.

use std::collections::VecDeque;
use std::time::Duration;

use super::step::Step;

/// Pause between two looks at a run of writes that goes on: a step passes over all chunks, and may take a tenth of the
/// time.
const PURSUIT_NS: u64 = 100_000;
const PURSUIT_NS_PER_CHUNK: u64 = 20;
/// Time for which a run goes on after chunks ahead of it were moved.
const PURSUED_NS: u64 = 3_000_000;

/// Observed writes to frozen chunks.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// Faults of the process at the last look; `None` if the next look is due even without later writes.
    pub(crate) faults: Option<u64>,
    pub(crate) not_before_ns: u64,
    pub(crate) delay_ns: u64,
    /// Looks in a row that found nothing.
    pub(crate) in_vain: u32,
    /// Private pages of each chunk at the last look.
    pub(crate) counts: Vec<u16>,
    pub(crate) wanted: VecDeque<usize>,
    pub(crate) fronts: Vec<Front>,
    /// Chunks that runs of writes are about to come to. They move before the wanted ones.
    pub(crate) ahead: VecDeque<usize>,
    pub(crate) pursued_until_ns: u64,
}

/// The place where a run of writes goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front {
    pub(crate) next: usize,
    pub(crate) ahead: usize,
}

impl Moving {
    /// Begins anew: a freeze or a roll back changed the frozen memory.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn next_step(&self, chunks: usize, now_ns: u64) -> Step {
        let pursuit_ns = PURSUIT_NS.max(PURSUIT_NS_PER_CHUNK * chunks as u64);
        let left_ns = self.not_before_ns.saturating_sub(now_ns);
        let left_ns = if self.pursues(now_ns) { left_ns.min(pursuit_ns) } else { left_ns };
        Step::Later(Duration::from_nanos(left_ns.max(1)))
    }

    /// True while a run of writes goes on.
    pub(crate) fn pursues(&self, now_ns: u64) -> bool {
        !self.fronts.is_empty() && now_ns < self.pursued_until_ns
    }

    /// Notes that a run of writes goes on.
    pub(crate) fn pursue(&mut self, now_ns: u64) {
        self.pursued_until_ns = now_ns + PURSUED_NS;
    }

    pub(crate) fn clear(&mut self) {
        self.wanted.clear();
        self.ahead.clear();
        self.fronts.clear();
    }
}

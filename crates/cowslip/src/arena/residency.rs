//! What a freeze or a thaw unmapped is mapped again in the background.
//!
//! ```text
//!   freeze, thaw ──▶ nothing mapped ──▶ huge mappings ──first write to a chunk──▶ base pages, as they are touched
//!                                            ▲  once                                       │
//!                                            └──────────── now and then, while frozen ─────┘ base pages, all
//! ```
//! Both change mappings and no content: the program does not notice, but whoever watches it does. Its resident set
//! (`VmRSS`, `proc_pid_status(5)`) would fall to next to nothing, and what a child alone maps counts as that child's private
//! memory, which Redis reports as copies. One `MADV_POPULATE_READ` maps a chunk that nobody wrote to by one fault.
//!
//! Only what is in memory is mapped: nothing is allocated in a hole, or read back from swap.

use cowslip_sys::memory::{self, Prot};
use cowslip_sys::units::VirtRange;
use cowslip_sys::{cache, memfile, process};

use super::backing_file::{Pages, offset};
use super::backoff::backoff;
use super::state::{Chunk, Shared, State};
use super::vma_map::Usage;

/// In one step: other threads may wait for the mappings meanwhile.
const STEP_BYTES: usize = 8 << 20;
const FIRST_ROUND_NS: u64 = 50_000_000;
const LAST_ROUND_NS: u64 = 2_000_000_000;

/// What is to be mapped again.
#[derive(Debug, Default)]
pub(crate) struct Unmapped {
    ranges: Vec<VirtRange>,
    next_round_ns: u64,
    delay_ns: u64,
    /// Private pages of the process at the last round.
    pages: Option<u64>,
}

impl Unmapped {
    /// A freeze unmapped this.
    pub(crate) fn add_frozen(&mut self, range: VirtRange) {
        self.delay_ns = 0;
        self.next_round_ns = 0;
        self.add(range);
    }

    /// A thaw did.
    pub(crate) fn add(&mut self, range: VirtRange) {
        match self.ranges.last_mut() {
            Some(last) if last.end() == range.start => last.len += range.len,
            _ => self.ranges.push(range),
        }
    }

    /// How much there is.
    pub(crate) fn bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.len).sum()
    }

    fn take(&mut self) -> Option<VirtRange> {
        let last = self.ranges.last_mut()?;
        let part = VirtRange::new(last.start, last.len.min(STEP_BYTES));
        *last = VirtRange::between(part.end(), last.end());
        if last.is_empty() {
            self.ranges.pop();
        }
        Some(part)
    }
}

/// Maps a part of it. Whether there was one.
pub(crate) fn map_some(shared: &Shared, state: &mut State) -> bool {
    let Some(part) = state.unmapped.take() else { return false };
    if shared.backing_file.pages == Pages::Hugetlb {
        // Counted elsewhere, and paid for by a pool.
        return true;
    }
    let state = &*state;
    let is_file = |i| matches!(state.chunk(i), Chunk::Live | Chunk::Frozen | Chunk::Clean);
    for span in state.vma_map.within(part) {
        if span.usage == Usage::Used && span.prot.contains(Prot::READ) {
            let chunks = shared.by_chunk(span.range).filter(|(i, _)| is_file(*i));
            chunks.for_each(|(_, range)| map_resident(shared, range));
        }
    }
    true
}

/// Maps what is in memory of a part of a chunk.
pub(crate) fn map_resident(shared: &Shared, range: VirtRange) {
    let (file, start) = (shared.backing_file.fd(), offset(shared.range, range));
    let is_swapped =
        cache::cached(file, start, range.len as u64).is_ok_and(|cached| cached.evicted_bytes > 0);
    let (mut from, end) = (start, start + range.len as u64);
    while !is_swapped && let Ok(Some((data, hole))) = memfile::next_data(file, from, end) {
        let data = VirtRange::new(range.start + (data - start) as usize, (hole - data) as usize);
        // What is not mapped now is when somebody touches it.
        let _ = memory::populate(data);
        from = hole;
    }
}

/// Has all that is frozen gone over again, if it is time for that and something was written since. How long until the next
/// time, if there is one.
pub(crate) fn begin_round(shared: &Shared, state: &mut State) -> Option<u64> {
    if state.not_live() == 0 {
        return None;
    }
    let now = process::now_ns();
    if now >= state.unmapped.next_round_ns {
        let is_first = state.unmapped.next_round_ns == 0;
        let delay = backoff(&mut state.unmapped.delay_ns, FIRST_ROUND_NS, LAST_ROUND_NS);
        state.unmapped.next_round_ns = now + delay.as_nanos() as u64;
        let pages = process::anonymous_pages();
        if !is_first && pages != state.unmapped.pages {
            let mut from = 0;
            while let Some(run) = state.next_run(from, usize::MAX, |chunk| chunk == Chunk::Frozen) {
                from = run.end;
                state.unmapped.add(shared.chunk_range(run.start, run.len()));
            }
        }
        state.unmapped.pages = pages;
    }
    Some(state.unmapped.next_round_ns - now)
}

//! Maps memory again, in the background, that a freeze or a thaw unmapped.
//!
//! ```text
//!   freeze, thaw ──▶ nothing mapped ──▶ huge mappings ──first write to a chunk──▶ base pages, as they are touched
//!                                            ▲  once                                       │
//!                                            └────────── once more, as writes grow few ────┘ base pages, all
//! ```
//! Both change mappings and no content: the program does not notice, but its observers do. Its resident set (`VmRSS`,
//! `proc_pid_status(5)`) would fall to next to nothing, and memory that only a child maps counts as that child's
//! private memory, which Redis reports as copies. One `MADV_POPULATE_READ` maps an unwritten chunk by one fault.
//!
//! The first write to a mapped page costs more than one to an unmapped page: processors have to forget the mapping. A
//! chunk that lost its huge mapping to writes is therefore mapped singly only once, and not while the program writes
//! much: it maps the pages that it touches itself.
//!
//! Only pages in memory are mapped: none is allocated in a hole, or read back from swap.

use cowslip_sys::memory::{self, Prot};
use cowslip_sys::units::VirtRange;
use cowslip_sys::{memfile, process};

use super::state::{Chunk, Shared, State};
use crate::mapping::backing_file::{BackingFile, Pages, offset};
use crate::memory::backoff::backoff;
use crate::memory::vma_map::Usage;

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
    rounds: Rounds,
}

/// The schedule by which all frozen memory is mapped again.
#[derive(Debug, Default)]
struct Rounds {
    next_ns: u64,
    delay_ns: u64,
    /// The last look: when it was, and how many private pages the process had.
    looked_ns: u64,
    pages: Option<u64>,
    /// Pages were written since the last round.
    is_behind: bool,
}

impl Rounds {
    /// Called when a look is due. True if a round must be made now.
    fn look(&mut self, now_ns: u64, pages: Option<u64>) -> bool {
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

/// Maps a part of the unmapped memory. True if there was one.
pub(crate) fn map_some(shared: &Shared, state: &mut State) -> bool {
    let Some(part) = state.unmapped.take() else { return false };
    if shared.pages == Pages::Hugetlb {
        // Counted elsewhere, and paid for by a pool.
        return true;
    }
    let is_file = |chunk| matches!(chunk, Chunk::Live | Chunk::Frozen | Chunk::Clean);
    for (i, whole) in shared.by_chunk(part) {
        if !is_file(state.chunk(i)) || is_mapped(shared, state, i, whole) {
            continue;
        }
        for span in state.vma_map.within(whole) {
            if span.usage == Usage::Used && span.prot.contains(Prot::READ) {
                map_resident(shared, state.file_at(span.range.start), span.range);
            }
        }
        // Writes may have taken the huge mapping already.
        if state.chunk(i) == Chunk::Frozen && is_huge(shared, state, whole) == Some(false) {
            state.map.set_mapped_singly(i, true);
        }
    }
    true
}

/// True if a frozen chunk needs no look any more: a huge page maps it, or all its pages in memory were mapped singly.
fn is_mapped(shared: &Shared, state: &State, chunk: usize, whole: VirtRange) -> bool {
    let is_frozen = state.chunk(chunk) == Chunk::Frozen;
    is_frozen
        && (state.map.is_mapped_singly(chunk) || is_huge(shared, state, whole).unwrap_or(false))
}

/// True if a huge page maps `range`; `None` where that is not known.
fn is_huge(shared: &Shared, state: &State, range: VirtRange) -> Option<bool> {
    shared.service(state)?.scanner.is_huge(range).ok()
}

/// Maps the pages of a part of a chunk that are in memory.
pub(crate) fn map_resident(shared: &Shared, file: &BackingFile, range: VirtRange) {
    let (file, start) = (file.fd(), offset(shared.range, range));
    let (mut from, end) = (start, start + range.len as u64);
    // Pages that are not mapped now are mapped when the program touches them.
    let map = |from: u64, to: u64| {
        let part = VirtRange::new(range.start + (from - start) as usize, (to - from) as usize);
        let _ = memory::populate(part);
    };
    match memfile::held(file, start, range.len as u64) {
        Ok(cached) if cached.evicted_bytes > 0 || cached.bytes == 0 => return,
        Ok(cached) if cached.bytes == range.len as u64 => return map(start, end),
        _ => {}
    }
    while let Ok(Some((data, hole))) = memfile::next_data(file, from, end) {
        map(data, hole);
        from = hole;
    }
}

/// Queues all frozen memory to be mapped again, if it is time for that and pages were written since. Returns the time
/// to the next look, if there is one.
pub(crate) fn begin_round(shared: &Shared, state: &mut State) -> Option<u64> {
    if state.not_live() == 0 {
        return None;
    }
    let now_ns = process::now_ns();
    let rounds = &mut state.unmapped.rounds;
    if now_ns >= rounds.next_ns && rounds.look(now_ns, process::anonymous_pages()) {
        let mut from = 0;
        while let Some(run) = state.next_run(from, usize::MAX, |chunk| chunk == Chunk::Frozen) {
            from = run.end;
            state.unmapped.add(shared.chunk_range(run.start, run.len()));
        }
    }
    Some(state.unmapped.rounds.next_ns - now_ns)
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

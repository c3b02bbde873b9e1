//! A program's memory begins on base pages, as it does natively, and becomes huge when it is dense.
//!
//! The mapping decides the page that a fault takes: [chunks](crate::memory::page_size) that take base pages are mapped with
//! `MADV_NOHUGEPAGE`. Memory that [`crate::plan::density`] trusts to be filled is mapped without it before it is touched. The
//! service thread makes the rest huge, one chunk at a time (`MADV_COLLAPSE`): only threads that touch it have to wait.

use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{Errno, memfile};

use super::state::{Chunk, Role, Shared, State};
use crate::mapping::backing_file::offset;
use crate::memory::density::PageSet;
use crate::plan::density::trusted_bytes;
use crate::plan::settings::density::{MOST_BORDERS, SAMPLE_BYTES, SAMPLES};
use crate::timing::Stopwatch;

impl Shared {
    /// Maps a piece so that writes reach the file, with the page size chosen for its faults.
    pub(crate) fn map_live(
        &self,
        state: &State,
        piece: VirtRange,
        prot: Prot,
    ) -> Result<(), Errno> {
        state.file_at(piece.start).map_live(self.piece(piece), prot)?;
        self.mark_base(state, piece);
        Ok(())
    }

    /// Sets the page size chosen for the faults on a new mapping.
    pub(crate) fn mark_base(&self, state: &State, piece: VirtRange) {
        if state.vma_map.is_base(piece.start) {
            // Best effort: without it more memory is held.
            let _ = self.piece(piece).advise(Advice::NoHugePage);
        }
    }

    /// Makes all untouched memory begin on base pages.
    pub(crate) fn begin_small(&self, state: &mut State) {
        if self.is_thp() {
            state.density.begins_small = true;
            self.set_base(state, self.chunks_of(self.range));
        }
    }

    fn set_base(&self, state: &mut State, chunks: std::ops::Range<usize>) {
        // First: pieces may be finer than mappings, and must not be coarser.
        state.vma_map.base_chunks.set(chunks.clone(), true);
        let pieces = state.pieces(self.chunk_range(chunks.start, chunks.len()));
        pieces.iter().for_each(|(piece, _)| self.mark_base(state, *piece));
    }

    /// Makes faults on live chunks take huge pages. Their mapped pages fault again.
    fn set_huge(&self, state: &mut State, chunks: std::ops::Range<usize>) -> Result<(), Errno> {
        for (piece, prot) in state.pieces(self.chunk_range(chunks.start, chunks.len())) {
            state.file_at(piece.start).map_live(self.piece(piece), prot)?;
        }
        state.vma_map.base_chunks.set(chunks, false);
        Ok(())
    }

    /// Keeps a chunk that was split on base pages: khugepaged, which fills holes with zeroes, must not make it huge
    /// again.
    pub(crate) fn keep_small(&self, state: &mut State, chunk: usize) {
        if !self.would_cut_up(state, chunk) {
            self.set_base(state, chunk..chunk + 1);
        }
    }

    /// True if another page size of a chunk would make more runs than a freeze should move.
    pub(crate) fn would_cut_up(&self, state: &State, chunk: usize) -> bool {
        let (all, base) = (self.chunks_of(self.range), &state.vma_map.base_chunks);
        let differs =
            |other: usize| all.contains(&other) && base.contains(other) != base.contains(chunk);
        let has_neighbour = differs(chunk + 1) || chunk.checked_sub(1).is_some_and(differs);
        !has_neighbour && base.borders(all.clone()) >= MOST_BORDERS
    }

    /// Follows the program's advice about huge pages in a range (`MADV_HUGEPAGE`, `MADV_NOHUGEPAGE`).
    pub(crate) fn prefer_huge(&self, state: &mut State, range: VirtRange, is_wanted: bool) {
        if !self.is_thp() || state.role == Role::Reader {
            return;
        }
        if !is_wanted {
            let chunks = self.chunks_of(range);
            state.density.refused.set(chunks.clone(), true);
            self.set_base(state, chunks);
            return;
        }
        let chunks = self.chunks_of(range.inner_aligned(CHUNK_BYTES));
        state.density.refused.set(chunks.clone(), false);
        let is_empty_base = |state: &State, chunk| {
            state.chunk(chunk) == Chunk::Live
                && state.vma_map.base_chunks.contains(chunk)
                && self.holds_nothing(state, chunk)
        };
        let mut at = chunks.start;
        while let Some(first) = (at..chunks.end).find(|chunk| is_empty_base(state, *chunk)) {
            let end = (first..chunks.end).find(|chunk| !is_empty_base(state, *chunk));
            at = end.unwrap_or(chunks.end);
            // If it fails, they stay on base pages.
            let _ = self.set_huge(state, first..at);
        }
        // Touched chunks become huge when they are dense.
        state.plan.density.change();
        self.notify(state);
    }

    /// Pages of a chunk that the file does not hold.
    fn holes(&self, state: &State, chunk: usize) -> PageSet {
        let place = self.chunk_range(chunk, 1);
        let file = state.file_at(place.start).fd();
        let (start, mut holes) = (offset(self.range, place), PageSet::default());
        let end = start + place.len as u64;
        let mut at = start;
        while at < end {
            let Ok(data) = memfile::next_data(file, at, end) else { break };
            let (from, to) = data.unwrap_or((end, end));
            let here = |at: u64| place.start + (at - start) as usize;
            holes.add(PageSet::from_part(place.start, VirtRange::between(here(at), here(from))));
            at = to;
        }
        holes
    }

    fn holds_nothing(&self, state: &State, chunk: usize) -> bool {
        let place = self.chunk_range(chunk, 1);
        let (file, at) = (state.file_at(place.start).fd(), offset(self.range, place));
        let data = memfile::next_data(file, at, at + CHUNK_BYTES as u64);
        data.is_ok_and(|data| data.is_none())
    }

    /// Before `range` is handed out: makes as much of it begin on huge pages as the program is trusted with.
    pub(crate) fn trust(&self, state: &mut State, range: VirtRange) {
        if !state.density.begins_small || range.len < CHUNK_BYTES {
            return;
        }
        state.density.refused.set(self.chunks_of(range.inner_aligned(CHUNK_BYTES)), false);
        let part = self.trusted_part(state, range).inner_aligned(CHUNK_BYTES);
        if part.is_empty() {
            return;
        }
        let chunks = self.chunks_of(part);
        let is_new = chunks.clone().all(|chunk| state.chunk(chunk) == Chunk::Live);
        if is_new && self.set_huge(state, chunks).is_ok() {
            state.density.trusted = Some(part);
        }
    }

    fn trusted_part(&self, state: &State, range: VirtRange) -> VirtRange {
        let held_bytes = state.files.allocated_bytes();
        let trusted = trusted_bytes(state.vma_map.used_bytes(), held_bytes);
        if trusted < CHUNK_BYTES as u64 || !self.was_trust_kept(state) {
            return VirtRange::default();
        }
        let len = range.len.min(usize::try_from(trusted).unwrap_or(usize::MAX));
        VirtRange::new(range.start, len)
    }

    /// True if the memory that was trusted last was filled.
    fn was_trust_kept(&self, state: &State) -> bool {
        state.density.trusted.is_none_or(|part| self.is_filled(state, part))
    }

    /// True if half of a sample of places is not zero. Content is read only where the file holds half of the part: little
    /// blocks come and go, and memory on base pages was hardly used where it has few.
    fn is_filled(&self, state: &State, part: VirtRange) -> bool {
        if part.len <= SAMPLES * CHUNK_BYTES && self.held_bytes(state, part) < part.len as u64 / 2 {
            return false;
        }
        let step = (part.len / SAMPLES).next_multiple_of(SAMPLE_BYTES);
        let mut content = [0; SAMPLE_BYTES];
        let is_filled = |place: &usize| {
            let at = offset(self.range, VirtRange::new(*place, SAMPLE_BYTES));
            memfile::read_exact_at(state.file_at(*place).fd(), &mut content, at).is_ok()
                && content.iter().any(|byte| *byte != 0)
        };
        let places = (part.start..part.end() - SAMPLE_BYTES).step_by(step);
        places.filter(is_filled).take(SAMPLES / 2).count() == SAMPLES / 2
    }

    /// Bytes that files hold for `part`, all where they cannot be asked.
    fn held_bytes(&self, state: &State, part: VirtRange) -> u64 {
        let held_bytes = |part: VirtRange| {
            let file = state.file_at(part.start).fd();
            let held = memfile::held(file, offset(self.range, part), part.len as u64);
            held.map_or(part.len as u64, |held| held.bytes + held.evicted_bytes)
        };
        state.by_file(part).map(held_bytes).sum()
    }

    /// Before chunks of `part` are given back: if they were not filled, their places begin on base pages the next time, as
    /// new memory does.
    pub(super) fn learn_use(&self, state: &mut State, part: VirtRange) {
        let whole = part.inner_aligned(CHUNK_BYTES);
        if !state.density.begins_small || whole.is_empty() {
            return;
        }
        let (all, chunks) = (self.chunks_of(self.range), self.chunks_of(whole));
        let base = &state.vma_map.base_chunks;
        let has_huge = !chunks.clone().all(|chunk| base.contains(chunk));
        let is_there = |trusted: &mut VirtRange| !trusted.intersect(whole).is_empty();
        let is_trusted = state.density.trusted.as_mut().is_some_and(is_there);
        if !has_huge && !is_trusted {
            return;
        }
        if self.is_filled(state, whole) {
            state.density.trusted.take_if(is_there);
            return;
        }
        let is_base = |chunk: usize| all.contains(&chunk) && base.contains(chunk);
        let has_neighbour = is_base(chunks.end) || chunks.start.checked_sub(1).is_some_and(is_base);
        if has_huge && (has_neighbour || base.borders(all.clone()) < MOST_BORDERS) {
            self.set_base(state, chunks);
        }
    }
}

/// Makes a dense chunk huge. True if it did; an error if it may succeed later.
pub(crate) fn make_huge(shared: &Shared, state: &mut State, chunk: usize) -> Result<bool, Errno> {
    let place = shared.chunk_range(chunk, 1);
    let was_base = state.vma_map.base_chunks.contains(chunk);
    if was_base && shared.set_huge(state, chunk..chunk + 1).is_err() {
        return Ok(false);
    }
    let watch = Stopwatch::start();
    // Filled with zeroes from here on: kept, but of no use.
    let holes = shared.holes(state, chunk);
    let piece = shared.piece(place);
    // Linux 6.1 answers EINVAL, as if it could not, where the range has no page table, though the file's pages were collapsed.
    let _ = piece.first(page_size_bytes()).advise(Advice::PopulateRead);
    let collapsed = piece.advise(Advice::Collapse);
    shared.counters.stalled(watch.elapsed_ns());
    match collapsed {
        Ok(()) => {
            state.density.forget(chunk);
            let _ = state.density.keep(chunk, holes);
            shared.counters.collapsed_chunks.fetch_add(1, Relaxed);
            Ok(true)
        }
        Err(Errno::INVAL) => {
            give_up(shared, state);
            Ok(false)
        }
        Err(errno) => {
            if was_base {
                shared.set_base(state, chunk..chunk + 1);
            }
            Err(errno)
        }
    }
}

/// Where the kernel cannot make file memory huge afterwards, all memory that the program lets be huge begins so.
fn give_up(shared: &Shared, state: &mut State) {
    state.plan.density.give_up();
    state.density.begins_small = false;
    for chunk in shared.chunks_of(shared.range) {
        let is_small = state.vma_map.base_chunks.contains(chunk);
        if is_small && state.chunk(chunk) == Chunk::Live && !state.density.refused.contains(chunk) {
            let _ = shared.set_huge(state, chunk..chunk + 1);
        }
    }
}

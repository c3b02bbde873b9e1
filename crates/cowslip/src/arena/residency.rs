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

use cowslip_sys::memfile;
use cowslip_sys::memory::{self, Prot};
use cowslip_sys::units::VirtRange;

use super::state::{Chunk, Shared, State};
use crate::mapping::backing_file::{BackingFile, Pages, offset};
use crate::memory::vma_map::Usage;
use crate::plan::settings::residency::STEP_BYTES;

/// Maps a part of the unmapped memory.
pub(crate) fn map_some(shared: &Shared, state: &mut State) {
    let Some(part) = state.unmapped.take(STEP_BYTES) else { return };
    if shared.pages == Pages::Hugetlb {
        // Counted elsewhere, and paid for by a pool.
        return;
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

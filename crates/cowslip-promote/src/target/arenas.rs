//! Arenas of a program that runs with Cowslip: shared memory, which promotion would otherwise skip.
//!
//! They are found by their page of counters. While one is live, `MADV_COLLAPSE` makes its regions huge like
//! others. While it is frozen, being thawed or being restored it is left alone: the thaw restores its huge
//! pages. A freeze between the check and the collapse costs only time: a collapse changes no content, and the
//! kernel excludes memory that userfaultfd watches.

use cowslip::Metrics;
use cowslip::raw::PAGE_NAME;
use cowslip_sys::procfs::Mapping;
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{self as sys, target};

use crate::model::RegionKind;

/// An arena of another process.
#[derive(Clone, Debug)]
pub(super) struct ForeignArena {
    range: VirtRange,
    counters: VirtRange,
}

/// The arenas of a process with these mappings.
pub(super) fn find(
    handle: &target::Target,
    mappings: &[Mapping<'_>],
) -> sys::Result<Vec<ForeignArena>> {
    let mut arenas = Vec::new();
    for page in mappings.iter().filter(|mapping| mapping.is_memfd(PAGE_NAME)) {
        if let Some(metrics) = read(handle, page.range)? {
            let start = metrics.arena_start_address as usize;
            let range = VirtRange::new(start, metrics.capacity_bytes as usize);
            arenas.push(ForeignArena { range, counters: page.range });
        }
    }
    // The counters can outlive their arena.
    arenas.retain(|arena| mappings.iter().any(|mapping| arena.has(mapping)));
    Ok(arenas)
}

/// `None` for a page of something else, and for one that was unmapped meanwhile. The counters are in the first page, however
/// long the mapping is.
fn read(handle: &target::Target, mapping: VirtRange) -> sys::Result<Option<Metrics>> {
    let page = mapping.intersect(VirtRange::new(mapping.start, page_size_bytes()));
    match handle.read_memory(page) {
        Ok(bytes) => Ok(Metrics::from_page(&bytes)),
        Err(sys::Errno::IO | sys::Errno::FAULT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl ForeignArena {
    /// True if the mapping is of the arena's file, which has no name any more.
    pub(super) fn has(&self, mapping: &Mapping<'_>) -> bool {
        mapping.has_file && mapping.name.ends_with("(deleted)") && self.covers(mapping.range)
    }

    pub(super) fn covers(&self, range: VirtRange) -> bool {
        self.range.covers(range)
    }

    /// The kind of its regions now: live, or to be left alone.
    pub(super) fn kind(&self, handle: &target::Target) -> sys::Result<RegionKind> {
        let is_live = |metrics: Metrics| {
            (metrics.is_owner, metrics.frozen_chunks, metrics.absent_chunks) == (1, 0, 0)
        };
        let is_live = read(handle, self.counters)?.is_some_and(is_live);
        Ok(if is_live { RegionKind::Arena } else { RegionKind::FrozenArena })
    }
}

//! The address space of an arena, changed as a program's `mmap`, `mremap` and `madvise` change it.

use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::error::Result;
use cowslip_sys::memory::Prot;
use cowslip_sys::units::{ByteCount, VirtRange};

use super::{RawArena, Usage};

impl RawArena<'_> {
    /// The use of the parts of `range`, in order, as far as they lie in the arena.
    pub fn parts(&self, range: VirtRange) -> Vec<(VirtRange, Usage, Prot)> {
        let shared = self.shared();
        let state = shared.lock();
        let range = range.intersect(shared.range);
        state.vma_map.within(range).map(|span| (span.range, span.usage, span.prot)).collect()
    }

    /// Unmaps free space in `range`, so that the kernel alone decides about a mapping there that
    /// replaces nothing. Does nothing if a part is in use.
    ///
    /// # Errors
    /// The kernel's.
    pub fn vacate(&self, range: VirtRange) -> Result<()> {
        let shared = self.shared();
        let range = range.intersect(shared.range);
        let mut state = shared.lock_restored(range);
        if state.vma_map.is_vacant(range) { shared.unmap_free(&mut state, range) } else { Ok(()) }
    }

    /// Makes the allocation at `range` `len` bytes long without moving it; `false` if it cannot.
    ///
    /// # Errors
    /// The kernel's.
    pub fn grow(&self, range: VirtRange, len: ByteCount) -> Result<bool> {
        let shared = self.shared();
        shared.grow(&mut shared.lock_restored(range), range, len.0 as usize)
    }

    /// Makes children find zeroes in memory that [left](Usage::Left), or no longer (`MADV_WIPEONFORK`,
    /// `MADV_KEEPONFORK`): the kernel does that for anonymous memory only.
    pub fn wipe_on_fork(&self, range: VirtRange, wiped: bool) {
        let shared = self.shared();
        shared.wipe_on_fork(&mut shared.lock(), range, wiped);
    }

    /// The parts of `range` that children must find empty and that the kernel does not empty: a copy of them needs
    /// [`Self::wipe_on_fork`], too.
    pub fn wiped_on_fork(&self, range: VirtRange) -> Vec<VirtRange> {
        let shared = self.shared();
        let state = shared.lock();
        let wiped = shared.emptied_in_child(&state).map(|span| span.range.intersect(range));
        wiped.filter(|part| !part.is_empty()).collect()
    }

    /// Calls `map` to map something else over `range`. If `map` did, `range` no longer belongs to
    /// the arena. No freeze comes in between.
    pub fn replace_mapping<T>(
        &self,
        range: VirtRange,
        map: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let shared = self.shared();
        let range = range.intersect(shared.range);
        let mut state = shared.lock_restored(range);
        let mapped = map()?;
        shared.replace_mapping(&mut state, range);
        Some(mapped)
    }

    /// Notes that the kernel has resized or moved memory that [is detached](Usage::Detached), from `old` to `new`
    /// (`mremap(2)`).
    pub fn note_remap(&self, old: VirtRange, new: VirtRange) {
        let shared = self.shared();
        let mut state = shared.lock();
        let prot = state.vma_map.within(old).next().map_or(Prot::RW, |span| span.prot);
        shared.replace_mapping(&mut state, old);
        if new.start == old.start {
            shared.set_detached(&mut state, new.intersect(shared.range), prot);
        }
    }

    /// Makes memory that was not handed out yet begin on base pages from here on, and become huge when most of it is in
    /// use: as much as a program uses, and no more. Before that it begins on huge pages.
    pub fn begin_small(&self) {
        let shared = self.shared();
        shared.begin_small(&mut shared.lock());
    }

    /// Follows a program's advice about huge pages in a range (`MADV_HUGEPAGE`, `MADV_NOHUGEPAGE`): untouched memory
    /// takes them, or never does.
    pub fn prefer_huge(&self, range: VirtRange, is_wanted: bool) {
        let shared = self.shared();
        shared.prefer_huge(&mut shared.lock_restored(range), range, is_wanted);
    }

    /// Counts a mapping that had to be made elsewhere.
    pub fn count_passed_mapping(&self) {
        self.shared().counters.passed_mappings.fetch_add(1, Relaxed);
    }

    /// Hands out no more memory, and gives back the address space that is not handed out: something else may be mapped
    /// there from now on. Memory that is handed out stays as it is.
    ///
    /// # Errors
    /// The kernel's, if it is out of mappings (`vm.max_map_count`); the rest of the address space stays reserved.
    pub fn close(&self) -> Result<()> {
        let shared = self.shared();
        shared.close(&mut shared.lock_restored(shared.range))
    }
}

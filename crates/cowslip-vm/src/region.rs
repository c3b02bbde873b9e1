#![allow(unsafe_code)]
//! A region of guest memory, as rust-vmm sees it.
//!
//! # Safety
//! A region owns its memory: pages of an arena, or of a clone, that are readable and writable until it is dropped. No
//! Rust reference into them is ever made: access is by raw pointers and volatile slices, since a guest writes as well.

use std::sync::{Arc, Mutex};

use cowslip::units::VirtRange;
use cowslip::{ArenaSlice, TemplateClone};
use vm_memory::bitmap::BS;
use vm_memory::{
    GuestAddress, GuestMemoryError, GuestMemoryRegion, GuestMemoryRegionBytes, GuestUsize,
    MemoryRegionAddress, VolatileSlice,
};

use crate::layout::RamRange;

/// A region of a guest's RAM. Its memory goes back to the arena with the last handle of it.
#[derive(Debug)]
pub struct GuestRegion {
    range: RamRange,
    _memory: Memory,
}

/// Keeps a region's memory mapped.
#[derive(Debug)]
pub(crate) enum Memory {
    Arena(#[expect(dead_code, reason = "owned, never read")] ArenaSlice<u8>),
    Clone(#[expect(dead_code, reason = "owned, never read")] Arc<Mutex<TemplateClone>>),
}

impl GuestRegion {
    pub(crate) fn of_arena(guest: GuestAddress, memory: ArenaSlice<u8>) -> Self {
        let range = RamRange { guest, host: memory.range() };
        Self { range, _memory: Memory::Arena(memory) }
    }

    /// The clone's memory at `host`, which is readable and writable there.
    pub(crate) fn of_clone(
        guest: GuestAddress,
        host: VirtRange,
        clone: &Arc<Mutex<TemplateClone>>,
    ) -> Self {
        let range = RamRange { guest, host };
        Self { range, _memory: Memory::Clone(Arc::clone(clone)) }
    }

    /// Its place.
    pub fn range(&self) -> RamRange {
        self.range
    }
}

impl GuestMemoryRegion for GuestRegion {
    /// None: [`GuestRam::track_changes`](crate::GuestRam::track_changes) needs no note of each store.
    type B = ();

    fn len(&self) -> GuestUsize {
        self.range.host.len as u64
    }

    fn start_addr(&self) -> GuestAddress {
        self.range.guest
    }

    fn bitmap(&self) -> BS<'_, Self::B> {}

    fn get_host_address(&self, at: MemoryRegionAddress) -> Result<*mut u8, GuestMemoryError> {
        let at = self.check_address(at).ok_or(GuestMemoryError::InvalidBackendAddress)?;
        Ok((self.range.host.start + at.0 as usize) as *mut u8)
    }

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> Result<VolatileSlice<'_, BS<'_, Self::B>>, GuestMemoryError> {
        let at = GuestAddress(self.range.guest.0.saturating_add(offset.0));
        let host = self.range.host_of(at, count as u64);
        let host = host.ok_or(GuestMemoryError::InvalidBackendAddress)?;
        // SAFETY: see the module. `host` lies in the region, which the slice borrows.
        Ok(unsafe { VolatileSlice::new(host.start as *mut u8, host.len) })
    }
}

impl GuestMemoryRegionBytes for GuestRegion {}

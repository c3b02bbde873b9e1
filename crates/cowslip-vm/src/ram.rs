#![allow(unsafe_code)]
//! The RAM of a machine that can be frozen.
//!
//! # Safety
//! Functions with a contract pass it on, in the words of a machine: no processor or device touches RAM that is rolled
//! back or discarded. Restored memory is taken once, by regions that do not overlap.

use std::sync::Arc;
use std::time::Duration;

use cowslip::image::{Image, OnProgress, RestoreOptions, Restored};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, Error, ErrorKind, IoGuard, Place, Result};
use vm_memory::GuestAddress;

use crate::GuestMemory;
use crate::layout::{self, RamRange};
use crate::region::GuestRegion;
use crate::snapshot::Snapshot;
use crate::template::{GuestClone, GuestTemplate};

const MAKE: &str = "make the RAM of a guest";
const RESTORE: &str = "restore the RAM of a guest";

/// The RAM of a virtual machine, in an arena of its own.
#[derive(Debug)]
pub struct GuestRam {
    arena: Arena,
    /// By the guest's addresses.
    regions: Vec<Arc<GuestRegion>>,
}

impl GuestRam {
    /// Zeroed RAM: regions by their first address in the guest and their length.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] unless they are whole pages that do not overlap; those of
    /// [`ArenaBuilder::build`](cowslip::ArenaBuilder::build).
    pub fn new(regions: &[(GuestAddress, u64)]) -> Result<Self> {
        let chunks = |len: u64| len.checked_next_multiple_of(CHUNK_BYTES as u64);
        let lens = regions.iter().map(|(_, len)| chunks(*len));
        let capacity = lens.sum::<Option<u64>>().unwrap_or(u64::MAX);
        Self::in_arena(Arena::new(ByteCount(capacity))?, regions)
    }

    /// Zeroed RAM in this arena: one with room for memory that will be plugged, of base pages, or of hugetlb. Other
    /// memory in it is frozen and saved with the RAM.
    ///
    /// # Errors
    /// As for [`Self::new`]; those of [`Arena::allocate`].
    pub fn in_arena(arena: Arena, regions: &[(GuestAddress, u64)]) -> Result<Self> {
        let mut ram = Self { arena, regions: Vec::new() };
        regions.iter().try_for_each(|(guest, len)| ram.plug(*guest, *len))?;
        layout::sorted(ram.regions(), MAKE)?;
        Ok(ram)
    }

    /// RAM from an image that [`Snapshot::save`] wrote, to be used at once with a hybrid restore: keep [`Restored`] to
    /// wait for the rest, or to record the working set.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the image has no RAM of a guest; those of [`Image::restore`].
    pub fn restore(
        image: &Image,
        options: &RestoreOptions,
        progress: OnProgress<'_>,
    ) -> Result<(Self, Restored)> {
        let (number, regions) = layout::regions_in(image.description(), RESTORE)?;
        let restored = image.restore(number, options, progress)?;
        let arena = restored.arena().clone();
        let place = |host: VirtRange| VirtRange::new(arena.range().start + host.start, host.len);
        // SAFETY: the regions do not overlap, and nothing else has taken memory of the new arena.
        let ram = unsafe { Self::adopt(arena.clone(), &regions, place) }?;
        Ok((ram, restored))
    }

    /// RAM of its own with a template's content, usable at once: it can be frozen in turn.
    ///
    /// # Errors
    /// Those of [`Template::restore`](cowslip::Template::restore).
    pub fn from_template(template: &GuestTemplate) -> Result<Self> {
        let (base, regions) = (template.template(), template.regions());
        let arena = base.restore(base.arena_builder(Place::Anywhere)?)?;
        let place = |host: VirtRange| base.range_in(&arena, host);
        // SAFETY: the regions do not overlap, and nothing else has taken memory of the new arena.
        unsafe { Self::adopt(arena.clone(), regions, place) }
    }

    /// RAM for another machine, with a template's content: its writes are its own, 4 KiB each.
    ///
    /// # Errors
    /// Those of [`Template::map`](cowslip::Template::map).
    pub fn clone_of(template: &GuestTemplate) -> Result<GuestClone> {
        template.map()
    }

    /// Takes regions that a new arena has.
    ///
    /// # Safety
    /// The regions do not overlap, and nothing else has this memory of the arena.
    unsafe fn adopt(
        arena: Arena,
        regions: &[RamRange],
        place: impl Fn(VirtRange) -> VirtRange,
    ) -> Result<Self> {
        let adopt = |region: &RamRange| {
            // SAFETY: no other region has this part of the arena, as the caller ensures.
            let memory = unsafe { arena.adopt_slice::<u8>(place(region.host)) }?;
            Ok(Arc::new(GuestRegion::of_arena(region.guest, memory)))
        };
        let regions = regions.iter().map(adopt).collect::<Result<_>>()?;
        Ok(Self { arena, regions })
    }

    /// All regions, for devices, loaders and KVM: the same memory in each.
    pub fn memory(&self) -> GuestMemory {
        GuestMemory::from_arc_regions(self.regions.clone()).expect("sorted, and at least one")
    }

    /// Places of the regions, by the guest's addresses.
    pub fn regions(&self) -> Vec<RamRange> {
        self.regions.iter().map(|region| region.range()).collect()
    }

    /// The arena, for its [metrics](Arena::metrics) for instance.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Does most of the work of a [snapshot](Self::snapshot) that comes while an earlier one lives or thaws: moves what was
    /// written since, 2 MiB at a time, while processors and devices run. Call it just before the processors are stopped:
    /// the snapshot then holds them for little more than if all RAM were live.
    ///
    /// # Errors
    /// Those of [`Arena::prepare_freeze`]; all content is as before.
    pub fn prepare_snapshot(&self) -> Result<()> {
        self.arena.prepare_freeze()
    }

    /// Freezes all regions at one instant, while processors and devices run. Waits up to `timeout` for memory that is
    /// [held](Self::hold_for_io).
    ///
    /// # Errors
    /// Those of [`Arena::freeze`]; the RAM is as before then.
    pub fn snapshot(&self, timeout: Duration) -> Result<Snapshot> {
        Ok(Snapshot::new(self.arena.freeze_timeout(timeout)?, self.arena.range(), self.regions()))
    }

    /// Takes the RAM back to a snapshot. All snapshots stay, also later ones.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if regions were plugged or unplugged since; those of [`Arena::roll_back`]. The RAM is as
    /// before then.
    ///
    /// # Safety
    /// No processor runs, and no device and no thread accesses the RAM, until this returns.
    pub unsafe fn roll_back(&self, snapshot: &Snapshot) -> Result<()> {
        if self.regions() != snapshot.regions() {
            return Err(Error::new(ErrorKind::Usage, "roll the RAM of a guest back")
                .because("regions were plugged or unplugged since the snapshot"));
        }
        // SAFETY: no processor and no device uses the RAM, as the caller ensures; no reference into it exists.
        unsafe { self.arena.roll_back(snapshot.frozen()) }
    }

    /// Tracks changes from one snapshot to the next, so that a save onto an earlier image reads only those. Returns
    /// false where that is not available: see [`Arena::track_changes`].
    pub fn track_changes(&self, wanted: bool) -> bool {
        self.arena.track_changes(wanted)
    }

    /// Makes snapshots and thaws wait until the guard is dropped, for a device that reads or writes this memory by
    /// itself.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the range is not in one region.
    pub fn hold_for_io(&self, at: GuestAddress, len: u64) -> Result<IoGuard> {
        self.arena.hold_for_io(self.host_of(at, len, "hold the RAM of a guest for I/O")?)
    }

    /// Gives pages back that the guest does not use, as a balloon does: they read as zeroes. Snapshots still show them.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the range is not whole pages in one region; the kernel's, and then pages are as before or
    /// zeroes.
    ///
    /// # Safety
    /// No thread of this process and no device accesses the range until this returns. A guest that does nevertheless
    /// finds its content or zeroes, and may lose its stores.
    pub unsafe fn discard(&self, at: GuestAddress, len: u64) -> Result<()> {
        const OPERATION: &str = "discard RAM of a guest";
        let host = self.host_of(at, len, OPERATION)?;
        layout::sorted(vec![RamRange { guest: at, host }], OPERATION)?;
        // SAFETY: the range is part of a region, which has it from the arena; the rest is the caller's.
        unsafe { self.arena.discard(host) }
    }

    /// Adds zeroed RAM. Collections that [`Self::memory`] made before are without it.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] unless it is whole pages that are not RAM already; those of [`Arena::allocate`].
    pub fn plug(&mut self, guest: GuestAddress, len: u64) -> Result<()> {
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        let mut regions = self.regions();
        // A place that is no region's, to look at the guest's addresses before memory is taken.
        let host = VirtRange::new(self.arena.range().end(), bytes);
        regions.push(RamRange { guest, host });
        layout::sorted(regions, MAKE)?;
        let region = GuestRegion::of_arena(guest, self.arena.slice::<u8>(bytes)?);
        let at = self.regions.partition_point(|other| other.range().guest < guest);
        self.regions.insert(at, Arc::new(region));
        Ok(())
    }

    /// Takes the region that begins at `guest` away. Its memory goes back once no collection of [`Self::memory`] has it;
    /// snapshots still show it.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if no region begins there, or it is the last.
    pub fn unplug(&mut self, guest: GuestAddress) -> Result<()> {
        let at = self.regions.iter().position(|region| region.range().guest == guest);
        let Some(at) = at.filter(|_| self.regions.len() > 1) else {
            return Err(Error::new(ErrorKind::Usage, "unplug RAM of a guest")
                .because(format!("no region but the last begins at {:#x}", guest.0)));
        };
        self.regions.remove(at);
        Ok(())
    }

    fn host_of(&self, at: GuestAddress, len: u64, operation: &'static str) -> Result<VirtRange> {
        let mut hosts = self.regions.iter().filter_map(|region| region.range().host_of(at, len));
        hosts.next().ok_or_else(|| {
            let reason = format!("no region has all of {len:#x} bytes at {:#x}", at.0);
            Error::new(ErrorKind::Usage, operation).because(reason)
        })
    }
}

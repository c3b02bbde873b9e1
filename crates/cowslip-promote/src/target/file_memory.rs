//! Memory of files: shared memory, and text of programs and libraries.
//!
//! Shared memory is of a memfd, a file in a tmpfs as `/dev/shm`, System V, or without a name. Several processes may map
//! one file, and each may have touched another part of it: a region is as full as the file's.
//!
//! Huge pages lie at multiples of their size in the file, so that only mappings have regions whose addresses do as
//! well. Files of Cowslip are arenas, or belong to them. A sealed file is left alone: its owner has fixed its state.
//!
//! A region of text is as full as the process has mapped it: its file may be on a disk, and is not opened.

use std::collections::{BTreeMap, BTreeSet};

use cowslip_sys::memfile::{self, Seals};
use cowslip_sys::memory::Prot;
use cowslip_sys::procfs::{self, Mapping};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{self as sys, AsFd, BorrowedFd, OwnedFd, target};

use super::arenas::ForeignArena;
use crate::file_text::FileSystems;
use crate::model::{REGION_PAGES, Region, RegionKind};

/// The beginning of the names of files of Cowslip.
const OURS: &str = "/memfd:cowslip";

/// A mapping of a file of another process, with regions.
#[derive(Clone, Debug)]
pub(super) struct FileMapping {
    kind: RegionKind,
    range: VirtRange,
    offset_bytes: u64,
    device: u64,
    inode: u64,
}

/// A region of a file, the same in every process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FileRegion {
    device: u64,
    inode: u64,
    offset_bytes: u64,
}

/// The mappings of shared memory that have regions.
pub(super) fn find_shared(
    handle: &target::Target,
    mappings: &[Mapping<'_>],
    arenas: &[ForeignArena],
) -> sys::Result<Vec<FileMapping>> {
    find(handle, mappings, arenas, has_regions)
}

/// The mappings of shared memory that have no regions because of their addresses, large as they are.
pub(super) fn find_unaligned(
    handle: &target::Target,
    mappings: &[Mapping<'_>],
    arenas: &[ForeignArena],
) -> sys::Result<Vec<FileMapping>> {
    let is_unaligned = |mapping: &Mapping<'_>| {
        mapping.has_file && mapping.range.len >= 2 * CHUNK_BYTES && !is_aligned(mapping)
    };
    find(handle, mappings, arenas, is_unaligned)
}

fn find(
    handle: &target::Target,
    mappings: &[Mapping<'_>],
    arenas: &[ForeignArena],
    is_wanted: impl Fn(&Mapping<'_>) -> bool,
) -> sys::Result<Vec<FileMapping>> {
    let is_arenas = |mapping: &Mapping<'_>| {
        let mut of_arenas =
            mappings.iter().filter(|other| arenas.iter().any(|arena| arena.has(other)));
        of_arenas.any(|other| (other.device, other.inode) == (mapping.device, mapping.inode))
    };
    let is_shared = |mapping: &&Mapping<'_>| {
        !mapping.is_private
            && mapping.is_accessible
            && is_wanted(mapping)
            && !mapping.name.starts_with(OURS)
            && !is_arenas(mapping)
    };
    let mut found: Vec<_> = mappings.iter().filter(is_shared).collect();
    let mut devices: BTreeSet<u64> = memfile::memfd_device().into_iter().collect();
    if found.iter().any(|mapping| !devices.contains(&mapping.device)) {
        let text = handle.read_file("mountinfo")?;
        devices.extend(
            procfs::mounts(&text).filter(|mount| mount.kind == "tmpfs").map(|mount| mount.device),
        );
    }
    found.retain(|mapping| devices.contains(&mapping.device));
    let mut shared: Vec<_> = found
        .into_iter()
        .map(|mapping| FileMapping::from_mapping(mapping, RegionKind::Shmem))
        .collect();
    shared.retain(|mapping| !mapping.open(handle).is_some_and(|file| is_sealed(file.as_fd())));
    Ok(shared)
}

/// The mappings of text that have regions, on file systems that allow it.
pub(super) fn find_text(mappings: &[Mapping<'_>], systems: &mut FileSystems) -> Vec<FileMapping> {
    let is_text = |mapping: &&Mapping<'_>| {
        let protection = Prot::from_bits_truncate(mapping.protection);
        mapping.is_private
            && protection.contains(Prot::EXEC)
            && !protection.contains(Prot::WRITE)
            && has_regions(mapping)
            && systems.allows(mapping.device)
    };
    let text = mappings.iter().filter(is_text);
    text.map(|mapping| FileMapping::from_mapping(mapping, RegionKind::Text)).collect()
}

/// True if some of its addresses are where its file can have huge pages.
fn has_regions(mapping: &Mapping<'_>) -> bool {
    mapping.has_file && !mapping.range.inner_aligned(CHUNK_BYTES).is_empty() && is_aligned(mapping)
}

/// True if multiples of the size of a huge page in its file are multiples of it in memory.
fn is_aligned(mapping: &Mapping<'_>) -> bool {
    let begins_bytes = (mapping.range.start as u64).wrapping_sub(mapping.offset_bytes);
    begins_bytes.is_multiple_of(CHUNK_BYTES as u64)
}

fn is_sealed(file: BorrowedFd<'_>) -> bool {
    let fixed = Seals::SHRINK | Seals::GROW | Seals::WRITE | Seals::FUTURE_WRITE;
    memfile::seals(file).is_ok_and(|seals| seals.intersects(fixed))
}

impl FileMapping {
    fn from_mapping(mapping: &Mapping<'_>, kind: RegionKind) -> Self {
        let Mapping { range, offset_bytes, device, inode, .. } = *mapping;
        Self { kind, range, offset_bytes, device, inode }
    }

    pub(super) fn kind(&self) -> RegionKind {
        self.kind
    }

    pub(super) fn covers(&self, range: VirtRange) -> bool {
        self.range.covers(range)
    }

    /// The region of the file at an address of this mapping.
    pub(super) fn file_region(&self, address: u64) -> FileRegion {
        let Self { range, offset_bytes, device, inode, .. } = *self;
        FileRegion { device, inode, offset_bytes: offset_bytes + address - range.start as u64 }
    }

    /// The file; `None` if the mapping has gone, or without `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`.
    fn open(&self, handle: &target::Target) -> Option<OwnedFd> {
        let (start, end) = (self.range.start, self.range.end());
        handle.open_file(&format!("map_files/{start:x}-{end:x}")).ok()
    }

    /// Completes the regions of `range` in this mapping by the pages that the file holds, mapped here or not, as far as
    /// it may be opened.
    pub(super) fn add_held(
        &self,
        handle: &target::Target,
        range: VirtRange,
        regions: &mut Vec<Region>,
    ) {
        let mut by_address: BTreeMap<u64, Region> =
            regions.drain(..).map(|region| (region.address, region)).collect();
        let is_shared = self.kind == RegionKind::Shmem;
        if let Some(file) = is_shared.then(|| self.open(handle)).flatten() {
            let held = &mut |range: VirtRange, pages: u64, swapped_pages: u64| {
                let address = range.start as u64;
                let region =
                    by_address.entry(address).or_insert(Region { address, ..Region::default() });
                region.held_pages = pages as u16;
                region.swapped_pages = swapped_pages as u16;
            };
            // Without it, the pages that are mapped here are known.
            let _ = self.each_held(file.as_fd(), range, held);
        }
        regions.extend(by_address.into_values());
        regions.iter_mut().for_each(|region| region.kind = self.kind);
    }

    /// Calls `found` for each region of which the file holds some, with its pages in memory and in swap. Asks for less
    /// and less of the file, as long as an answer leaves a choice.
    fn each_held(
        &self,
        file: BorrowedFd<'_>,
        range: VirtRange,
        found: &mut impl FnMut(VirtRange, u64, u64),
    ) -> sys::Result<()> {
        let page_bytes = page_size_bytes() as u64;
        let offset_bytes = self.file_region(range.start as u64).offset_bytes;
        let held = memfile::held(file, offset_bytes, range.len as u64)?;
        if held.bytes + held.evicted_bytes == 0 {
            return Ok(());
        }
        let chunks = range.len / CHUNK_BYTES;
        if held.bytes == range.len as u64 {
            for chunk in 0..chunks {
                let part = VirtRange::new(range.start + chunk * CHUNK_BYTES, CHUNK_BYTES);
                found(part, REGION_PAGES.into(), 0);
            }
        } else if chunks == 1 {
            found(range, held.bytes / page_bytes, held.evicted_bytes / page_bytes);
        } else {
            let middle = range.start + chunks / 2 * CHUNK_BYTES;
            self.each_held(file, VirtRange::between(range.start, middle), found)?;
            self.each_held(file, VirtRange::between(middle, range.end()), found)?;
        }
        Ok(())
    }
}

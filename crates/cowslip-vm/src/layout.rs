//! Places of a guest's RAM: in the guest, and in the monitor's memory.

use std::collections::BTreeMap;

use cowslip::image::{Description, Root};
use cowslip::units::{VirtRange, page_size_bytes};
use cowslip::{Error, ErrorKind, Result};
use vm_memory::GuestAddress;

/// A region of a guest's RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RamRange {
    /// Its first address in the guest.
    pub guest: GuestAddress,
    /// Its place in the arena that it was made in.
    pub host: VirtRange,
}

impl RamRange {
    fn guest_end(&self) -> Option<u64> {
        self.guest.0.checked_add(self.host.len as u64)
    }

    /// The host's addresses of `len` bytes from `at`, if all of them are in this region.
    pub(crate) fn host_of(&self, at: GuestAddress, len: u64) -> Option<VirtRange> {
        let offset = at.0.checked_sub(self.guest.0)?;
        let end = offset.checked_add(len)?;
        (end <= self.host.len as u64)
            .then(|| VirtRange::new(self.host.start + offset as usize, len as usize))
    }
}

/// Sorts regions by the guest's addresses.
///
/// # Errors
/// [`ErrorKind::Usage`] if there is none, one is empty or not whole pages, or two overlap in the guest or the host.
pub(crate) fn sorted(mut regions: Vec<RamRange>, operation: &'static str) -> Result<Vec<RamRange>> {
    let page = page_size_bytes();
    regions.sort_by_key(|region| region.guest.0);
    let is_whole = |region: &RamRange| {
        let parts = [region.guest.0 as usize, region.host.start, region.host.len];
        !region.host.is_empty()
            && parts.iter().all(|part| part.is_multiple_of(page))
            && region.guest_end().is_some()
    };
    let overlaps = regions.windows(2).any(|pair| pair[0].guest_end() > Some(pair[1].guest.0));
    let mut hosts: Vec<VirtRange> = regions.iter().map(|region| region.host).collect();
    hosts.sort_by_key(|host| host.start);
    let is_shared = hosts.windows(2).any(|pair| pair[0].end() > pair[1].start);
    if regions.is_empty() || overlaps || is_shared || !regions.iter().all(is_whole) {
        return Err(Error::new(ErrorKind::Usage, operation)
            .because("the guest's RAM must be regions of whole pages that do not overlap"));
    }
    Ok(regions)
}

const PREFIX: &str = "ram@";

/// The names of a guest's regions in an image, and their places.
pub(crate) fn roots(regions: &[RamRange], arena_start: usize) -> BTreeMap<String, Root> {
    let root = |region: &RamRange| {
        let offset_bytes = (region.host.start - arena_start) as u64;
        let root = Root { arena: 0, offset_bytes, length_bytes: region.host.len as u64 };
        (format!("{PREFIX}{:#x}", region.guest.0), root)
    };
    regions.iter().map(root).collect()
}

/// The regions that an image names, with their places from the start of the arena, and the number of that arena.
///
/// # Errors
/// [`ErrorKind::Usage`] if the image has no RAM of a guest, or not in one arena.
pub(crate) fn regions_in(
    image: &Description,
    operation: &'static str,
) -> Result<(u32, Vec<RamRange>)> {
    let guest = |name: &str| {
        let digits = name.strip_prefix(PREFIX)?.strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok().map(GuestAddress)
    };
    let mut arenas = Vec::new();
    let mut regions = Vec::new();
    for (name, root) in &image.roots {
        if let Some(guest) = guest(name) {
            let host = VirtRange::new(root.offset_bytes as usize, root.length_bytes as usize);
            arenas.push(root.arena);
            regions.push(RamRange { guest, host });
        }
    }
    let regions = sorted(regions, operation)?;
    if arenas.iter().any(|arena| *arena != arenas[0]) {
        return Err(Error::new(ErrorKind::Usage, operation)
            .because("the image has the guest's RAM in several arenas"));
    }
    Ok((arenas[0], regions))
}

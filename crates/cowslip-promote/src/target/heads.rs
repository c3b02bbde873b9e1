//! First frames of huge pages, from the frames of base pages.

use cowslip_sys::pageflags::PageFlags;
use cowslip_sys::pagemap::Entry;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{self as sys, Errno};

use crate::model::REGION_PAGES;

/// Possible first frames of the huge pages whose base pages a region maps: a base page has the same place in
/// both.
#[derive(Debug, Default)]
pub(crate) struct Heads(Vec<u64>);

impl Heads {
    /// Takes in the entry of a page in `/proc/PID/pagemap`.
    pub(crate) fn see(&mut self, page: VirtRange, entry: Entry) {
        let place = (page.start % CHUNK_BYTES / page_size_bytes()) as u64;
        let Some(head) = entry.frame().and_then(|frame| frame.checked_sub(place)) else { return };
        if head.is_multiple_of(REGION_PAGES.into()) && self.0.last() != Some(&head) {
            self.0.push(head);
        }
    }

    /// True if a huge page begins at any of them.
    pub(crate) fn any(&self, flags: &PageFlags) -> sys::Result<bool> {
        for &head in &self.0 {
            if known(flags.begins_huge(head, REGION_PAGES.into()))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A frame that went away meanwhile is no error.
pub(super) fn known(answer: sys::Result<bool>) -> sys::Result<bool> {
    match answer {
        Err(Errno::IO | Errno::NXIO) => Ok(false),
        answer => answer,
    }
}

//! The state of regions on kernels without `PAGEMAP_SCAN` (before Linux 6.7), from `/proc/PID/pagemap` and
//! other files.
//!
//! - Present, swapped, or mapped by other processes too: the page's entry.
//! - Huge: `smaps` has a sum for each mapping, which tells if none or all of its full regions are huge. In
//!   between, `/proc/kpageflags` (root) tells which are one huge page, if they add up to that sum.
//! - The zero page looks like a page that other processes map too. It is the zero page if `smaps` reports no
//!   such pages in the mapping; otherwise `/proc/kpageflags` tells.
//!
//! Regions that remain unknown are treated in the harmless way: as not huge, because collapsing a huge page
//! does nothing, and as shared, so that they are left alone.

use cowslip_sys as sys;
use cowslip_sys::pageflags::PageFlags;
use cowslip_sys::pagemap::{Entry, Scanner};
use cowslip_sys::procfs::MappingUse;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use super::heads::{Heads, known};
use crate::model::{HugeSource, REGION_PAGES, Region};

/// Reads entries, and completes them from other files.
pub(super) struct Entries<'a> {
    scanner: &'a Scanner,
    /// `None` for users other than root.
    flags: Option<&'a PageFlags>,
    /// The least reliable source used so far.
    pub(super) huge_source: HugeSource,
}

/// A region and its first page frame, if that is visible.
struct Seen {
    region: Region,
    frame: Option<u64>,
}

impl<'a> Entries<'a> {
    pub(super) fn new(scanner: &'a Scanner, flags: Option<&'a PageFlags>) -> Self {
        Self { scanner, flags, huge_source: HugeSource::Sums }
    }

    /// Adds every region of `range` (whole regions of one mapping, with this use) that is not empty. `agreed`
    /// returns true if a region was made huge on request and has not changed since.
    pub(super) fn survey(
        &mut self,
        range: VirtRange,
        usage: &MappingUse,
        agreed: impl Fn(u64) -> bool,
        regions: &mut Vec<Region>,
    ) -> sys::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let has_shared = usage.shared_bytes > 0;
        let mut all = Vec::new();
        for start in (range.start..range.end()).step_by(CHUNK_BYTES) {
            let seen = self.region(VirtRange::new(start, CHUNK_BYTES), has_shared)?;
            if seen.region.pages + seen.region.zero_pages + seen.region.swapped_pages > 0 {
                all.push(seen);
            }
        }
        self.find_huge(&mut all, usage.huge_mapped_bytes(), agreed)?;
        regions.extend(all.iter().map(|seen| seen.region));
        Ok(())
    }

    fn region(&self, range: VirtRange, has_shared: bool) -> sys::Result<Seen> {
        let mut region = Region { address: range.start as u64, ..Region::default() };
        let (mut frame, mut suspects, mut heads) = (None, Vec::new(), Heads::default());
        self.scanner.entries(range, |page, entry: Entry| {
            if page.start == range.start {
                frame = entry.frame();
            }
            heads.see(page, entry);
            region.pages += u16::from(entry.is_present());
            region.swapped_pages += u16::from(entry.is_swapped());
            if entry.is_not_exclusive() {
                suspects.push(entry.frame());
            }
        })?;
        if let Some(flags) = self.flags.filter(|_| region.pages < REGION_PAGES) {
            region.is_partially_mapped = heads.any(flags)?;
        }
        for suspect in suspects {
            let is_zero = match (has_shared, &self.flags, suspect) {
                (false, ..) => true,
                (true, Some(flags), Some(frame)) => known(flags.is_zero(frame))?,
                _ => false,
            };
            if is_zero {
                region.pages -= 1;
                region.zero_pages += 1;
            } else {
                region.shared_pages += 1;
            }
        }
        Ok(Seen { region, frame })
    }

    fn find_huge(
        &mut self,
        all: &mut [Seen],
        huge_bytes: u64,
        agreed: impl Fn(u64) -> bool,
    ) -> sys::Result<()> {
        let huge = (huge_bytes / CHUNK_BYTES as u64) as usize;
        let full = || |seen: &&mut Seen| seen.region.pages == REGION_PAGES;
        if huge == 0 {
            return Ok(());
        }
        if all.iter_mut().filter(full()).count() == huge {
            all.iter_mut().filter(full()).for_each(|seen| seen.region.is_huge = true);
            return Ok(());
        }
        if let Some(flags) = self.flags {
            for seen in all.iter_mut().filter(full()) {
                if let Some(frame) = seen.frame {
                    seen.region.is_huge = known(flags.begins_huge(frame, REGION_PAGES.into()))?;
                }
            }
        }
        if all.iter().filter(|seen| seen.region.is_huge).count() == huge {
            self.huge_source = HugeSource::Frames;
            return Ok(());
        }
        self.huge_source = HugeSource::Guess;
        for seen in all.iter_mut().filter(full()) {
            seen.region.is_huge = agreed(seen.region.address);
        }
        Ok(())
    }
}

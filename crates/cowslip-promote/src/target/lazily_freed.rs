//! Pages that a program has given back lazily (`MADV_FREE`): in memory until the kernel needs them, and not
//! in use.
//!
//! A collapse makes them part of a huge page, and then the kernel does not take them back. Two files bound
//! their number; neither is enough alone:
//!
//! - `smaps` has the sum of each mapping, and excludes pages that were written again since.
//! - `/proc/kpageflags` (root) has the mark of each page, which stays on a page that was written again.
//!
//! The smaller of the two bounds a region. Without the second, any page of a mapping may be part of its sum.

use cowslip_sys::pageflags::PageFlags;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::procfs::{self, Mapping, MappingUse};
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{self as sys, process, target};

use super::Target;
use crate::model::{LazyFreeSource, Region, RegionKind};

/// Lazily freed memory by mapping.
#[derive(Debug, Default)]
pub(super) struct Sums {
    mappings: Vec<(VirtRange, u64)>,
    read_at_ns: u64,
    took_ns: u64,
}

impl Sums {
    pub(super) fn read(handle: &target::Target) -> sys::Result<Self> {
        let began_ns = process::now_ns();
        let smaps = handle.read_file("smaps")?;
        let sums = Self::from_smaps(&procfs::smaps(&smaps));
        let read_at_ns = process::now_ns();
        Ok(Self { read_at_ns, took_ns: read_at_ns - began_ns, ..sums })
    }

    pub(super) fn from_smaps(smaps: &[(Mapping<'_>, MappingUse)]) -> Self {
        let freed = smaps.iter().filter(|(_, usage)| usage.lazily_freed_bytes > 0);
        let mappings = freed.map(|(mapping, usage)| (mapping.range, usage.lazily_freed_bytes));
        Self { mappings: mappings.collect(), ..Self::default() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.mappings.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The most pages of `range` that may be lazily freed.
    fn most(&self, range: VirtRange) -> u64 {
        let touched =
            self.mappings.iter().filter(|(mapping, _)| !mapping.intersect(range).is_empty());
        touched.map(|(_, bytes)| bytes / page_size_bytes() as u64).sum()
    }

    /// True if they were read less than the duration of reading ago: the walk over all pages of the process
    /// is not repeated more often.
    fn are_fresh(&self) -> bool {
        process::now_ns() < self.read_at_ns + self.took_ns
    }
}

impl Target {
    /// Finds how many pages of each region may be lazily freed, and returns the source of that.
    pub(super) fn see_lazily_freed(
        &self,
        scanner: &Scanner,
        flags: Option<&PageFlags>,
        regions: &mut [Region],
    ) -> sys::Result<LazyFreeSource> {
        let mut source = LazyFreeSource::None;
        for region in regions.iter_mut().filter(|region| may_have_some(region)) {
            let most = self.lazily_freed.most(region.range());
            if most == 0 {
                continue;
            }
            let (marked, is_known) = marked(scanner, flags, region)?;
            region.lazily_freed_pages = marked.min(most) as u16;
            source = source.max(match is_known {
                true => LazyFreeSource::Frames,
                false => LazyFreeSource::Mappings,
            });
        }
        Ok(source)
    }

    /// The number of pages of a region that may be lazily freed now.
    pub(super) fn lazily_freed_now(
        &mut self,
        scanner: &Scanner,
        region: &Region,
    ) -> sys::Result<u16> {
        if !may_have_some(region) || !procfs::has_lazily_freed() {
            return Ok(0);
        }
        let (marked, _) = marked(scanner, PageFlags::open().ok().as_ref(), region)?;
        if marked > 0 && !self.lazily_freed.are_fresh() {
            self.lazily_freed = Sums::read(&self.handle)?;
        }
        Ok(marked.min(self.lazily_freed.most(region.range())) as u16)
    }
}

/// False for a huge page, which the kernel takes back only as a whole, and for an arena, which has no such
/// pages.
pub(super) fn may_have_some(region: &Region) -> bool {
    region.kind == RegionKind::Private && !region.is_huge && region.pages > 0
}

/// The number of pages of a region with the mark of lazily freed ones, or possibly with it, and true if none
/// is doubtful.
fn marked(
    scanner: &Scanner,
    flags: Option<&PageFlags>,
    region: &Region,
) -> sys::Result<(u64, bool)> {
    let Some(flags) = flags else { return Ok((region.pages.into(), false)) };
    let (mut frames, mut unknown) = (Vec::new(), 0);
    scanner.entries(region.range(), |_, entry| match entry.frame() {
        Some(frame) => frames.push(frame),
        None => unknown += u64::from(entry.is_present()),
    })?;
    let marked = flags.count_lazily_freed(&frames)? + unknown;
    Ok((marked.min(region.pages.into()), unknown == 0))
}

//! Pages that the kernel merged with equal ones (KSM): copy-on-write, like those that a child shares.
//!
//! A collapse gives the process copies of them, which costs the memory that merging saved. Page frames tell them from
//! pages of a child, to root only; for others they are shared pages, and their regions are left alone.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use cowslip_sys::pagemap::{Method, Scanner};
use cowslip_sys::{self as sys, Errno};

use super::Target;
use crate::model::{Region, RegionKind};

const FLAGS: &str = "/proc/kpageflags";
const MERGED: u64 = 1 << 21;

impl Target {
    /// Counts the merged pages of each region, which no longer count as shared then.
    pub(super) fn see_merged(
        &mut self,
        scanner: &Scanner,
        regions: &mut [Region],
    ) -> sys::Result<()> {
        self.merged.clear();
        if self.may_have_merged() {
            self.merged = count(scanner, regions)?;
        }
        Ok(())
    }

    /// Counts those of one region as they are now. Without any at the last look it has none that may be copied.
    pub(super) fn see_merged_now(&self, scanner: &Scanner, region: &mut Region) -> sys::Result<()> {
        if self.merged.contains(&region.address) {
            count(scanner, std::slice::from_mut(region))?;
            // Entries that are read again do not count them among the pages, as a look does.
            if scanner.method() == Method::Entries {
                region.pages += region.merged_pages;
            }
        }
        Ok(())
    }

    fn may_have_merged(&self) -> bool {
        let pages = self.handle.read_file("ksm_merging_pages");
        pages.is_ok_and(|pages| pages.trim() != "0")
    }
}

/// Returns the regions that have some.
fn count(scanner: &Scanner, regions: &mut [Region]) -> sys::Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    let Ok(flags) = File::open(FLAGS) else { return Ok(found) };
    let may_have_some =
        |region: &&mut Region| region.kind == RegionKind::Private && region.shared_pages > 0;
    for region in regions.iter_mut().filter(may_have_some) {
        let mut frames = Vec::new();
        scanner.entries(region.range(), |_, entry| {
            frames.extend(entry.frame().filter(|_| entry.is_not_exclusive()));
        })?;
        for frame in frames {
            if is_merged(&flags, frame)? && region.shared_pages > 0 {
                region.shared_pages -= 1;
                region.merged_pages += 1;
            }
        }
        if region.merged_pages > 0 {
            found.insert(region.address);
        }
    }
    Ok(found)
}

/// A frame that went away meanwhile is not merged.
fn is_merged(flags: &File, frame: u64) -> sys::Result<bool> {
    let mut word = [0; 8];
    match flags.read_at(&mut word, frame * 8) {
        Ok(8) => Ok(u64::from_ne_bytes(word) & MERGED != 0),
        Ok(_) => Ok(false),
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::IO | Errno::NXIO) => Ok(false),
            errno => Err(errno.unwrap_or(Errno::IO)),
        },
    }
}

//! Resets a clone to its template, in place.
//!
//! The written memory is not known, so it is searched for: where the base is made of huge pages, in the chunks that no
//! huge entry maps, since the first write to a chunk removes that entry (a scan that looks only at page-table entries).
//! These chunks are dropped as a whole, all by one system call, and the kernel frees their page tables (Linux 6.14):
//! the next touch maps the chunk huge again. On base pages the private pages themselves are searched for and dropped.
//!
//! On a kernel that cannot do so (before 6.13) everything is mapped anew, which drops it as fast but costs a fault at
//! the next touch of every chunk.
//!
//! `&mut` guarantees that there is no reference into the clone's mappings. Only copies of the base are dropped, or
//! zeroes replaced by zeroes.

use cowslip_sys::Errno;
use cowslip_sys::error::{During, Result};
use cowslip_sys::memory::Advice;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use super::TemplateClone;
use super::layout::Inherit;

impl TemplateClone {
    /// Resets the clone to the template: private copies are dropped, fresh memory is zeroed, shared memory is
    /// unchanged. Then it gets a new [identity](Self::identity), and the hooks run.
    ///
    /// # Errors
    /// An error of the kernel. The clone may then hold some of the written memory: reset it again,
    /// or drop it.
    pub fn reset(&mut self) -> Result<()> {
        const OPERATION: &str = "reset a clone";
        if self.scans {
            match self.drop_written() {
                Ok(()) => return self.renew_identity(),
                Err(errno) => self.scans = !is_lacking(errno),
            }
        }
        self.map_regions(|inherit| inherit != Inherit::Shared).during(OPERATION)?;
        self.renew_identity()
    }

    fn drop_written(&mut self) -> Result<(), Errno> {
        // Opened each time: one from before a fork would show the parent.
        let scanner = Scanner::open()?;
        let mut dropped = std::mem::take(&mut self.dropped);
        dropped.clear();
        let found = self.find_written(&scanner, &mut dropped);
        let done = found.and_then(|()| self.place.advise_all(&dropped, Advice::DontNeed));
        self.dropped = dropped;
        done
    }

    fn find_written<F: cowslip_sys::AsFd>(
        &self,
        scanner: &Scanner<F>,
        dropped: &mut Vec<VirtRange>,
    ) -> Result<(), Errno> {
        for region in self.base.layout.regions() {
            let here = *self.here(region.range);
            match region.inherit {
                Inherit::Shared => {}
                Inherit::Fresh => dropped.push(here),
                Inherit::Copied if self.base.is_huge => scanner.small_runs(here, |run| {
                    add_chunks(dropped, run.outer_aligned(CHUNK_BYTES).intersect(here));
                })?,
                Inherit::Copied => {
                    scanner.private_runs(here, |run| dropped.push(run))?;
                }
            }
        }
        Ok(())
    }
}

/// Returns true if this kernel will never do it. After any other error the same way may work again.
fn is_lacking(errno: Errno) -> bool {
    matches!(errno, Errno::NOTTY | Errno::INVAL | Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP)
}

/// Adds the part of `range` that the last of `ranges` does not cover; they come in order.
fn add_chunks(ranges: &mut Vec<VirtRange>, range: VirtRange) {
    match ranges.last_mut() {
        Some(last) if last.start <= range.start && range.start <= last.end() => {
            last.len = range.end().max(last.end()) - last.start;
        }
        _ => ranges.push(range),
    }
}

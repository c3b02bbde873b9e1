//! Partially mapped huge pages: a part was released, and the kernel keeps the whole until it runs short of
//! memory.
//!
//! `MADV_DONTNEED` on a part of a huge page, as allocators use it, takes that part out of the page tables.
//! The resident size shrinks; the memory becomes free only when the kernel's shrinker runs. `MADV_COLD` on a
//! remaining base page splits the huge page, and its unmapped part is free at once. (6.18, a Redis of which
//! 70 % was deleted: 267 MiB resident, 495 MiB held before, 256 MiB after.)

use cowslip_sys::pageflags::PageFlags;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::target::Advice;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{self as sys, Errno, process};

use super::Target;
use super::observe::look_closer;
use crate::model::{Action, ActionOutcome, Effect, REGION_PAGES, Region};

impl Target {
    /// Splits the rest of a huge page in a region. Page tables do not tell how much memory that frees: it is
    /// not counted.
    pub(crate) fn split_rest(&self, address: u64) -> ActionOutcome {
        let (effect, took_ns) = match self.try_split_rest(address) {
            Ok(done) => done,
            Err(errno) => (Effect::Refused(errno.raw_os_error()), 0),
        };
        let (process, action, at_ns) = (self.id, Action::Demote, process::now_ns());
        ActionOutcome {
            process,
            address,
            action,
            at_ns,
            took_ns,
            cpu_ns: 0,
            effect,
            freed_pages: 0,
        }
    }

    fn try_split_rest(&self, address: u64) -> sys::Result<(Effect, u64)> {
        let scanner = Scanner::new(self.handle.open_file("pagemap")?);
        let region = VirtRange::new(address as usize, CHUNK_BYTES);
        let mut left = Vec::new();
        scanner.entries(region, |page, entry| {
            if entry.is_present() && !entry.is_not_exclusive() {
                left.push(page);
            }
        })?;
        let page = match left[..] {
            [page, ..] if left.len() < REGION_PAGES.into() => page,
            _ => return Ok((Effect::Overtaken, 0)),
        };
        let began = process::now_ns();
        let advised = self.handle.advise(page, Advice::Cold);
        let took_ns = process::now_ns() - began;
        let split = advised.and_then(|()| match is_partially_mapped(&scanner, address)? {
            // One of its pages was held elsewhere.
            true => Err(Errno::AGAIN),
            false => Ok(()),
        });
        let refused = |errno: Errno| Effect::Refused(errno.raw_os_error());
        Ok((split.map_or_else(refused, |()| Effect::Done), took_ns))
    }
}

/// True if the region is still partially mapped, as far as that is visible.
pub(super) fn is_partially_mapped(scanner: &Scanner, address: u64) -> sys::Result<bool> {
    let mut region = Region { address, ..Region::default() };
    look_closer(scanner, PageFlags::open().ok().as_ref(), &mut region)?;
    Ok(region.is_partially_mapped)
}

//! Promotes and splits regions of a process, as decided.

use cowslip_sys::pagemap::{Method, Scanner};
use cowslip_sys::target::Advice;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{self as sys, Errno, process, procfs};

use super::Target;
use super::partially_mapped::is_partially_mapped;
use crate::model::{Action, ActionOutcome, Effect, REGION_PAGES, RegionKind};
use crate::policy::Decision;

impl Target {
    /// Promotes or splits a region, unless it has changed since the look.
    ///
    /// A child that is forked between the last check here and the kernel's copying shares the region after
    /// all; that costs the memory of one region, and nothing else.
    pub(crate) fn act(&mut self, decision: &Decision, action: Action) -> ActionOutcome {
        let done = self.try_act(decision, action);
        let (effect, took_ns, freed_pages) = match done {
            Ok(done) => done,
            Err(errno) => (Effect::Refused(errno.raw_os_error()), 0, 0),
        };
        let at_ns = process::now_ns();
        let address = decision.address;
        let cpu_ns = 0;
        ActionOutcome {
            process: self.id,
            address,
            action,
            at_ns,
            took_ns,
            cpu_ns,
            effect,
            freed_pages,
        }
    }

    fn try_act(&mut self, decision: &Decision, action: Action) -> sys::Result<(Effect, u64, u16)> {
        let address = decision.address;
        let scanner = Scanner::new(self.handle.open_file("pagemap")?);
        let mut before = self.look_again(&scanner, address)?;
        if action == Action::Promote {
            self.see_merged_now(&scanner, &mut before)?;
            before.lazily_freed_pages = self.lazily_freed_now(&scanner, &before)?;
        }
        let is_wanted = match (action, before.kind) {
            (_, RegionKind::FrozenArena) => false,
            // Pages that an allocator has released meanwhile must not come back: it may never release them
            // again.
            (Action::Promote, _) => !before.is_huge && before.used_pages() >= decision.pages.max(1),
            (Action::Demote, kind) => before.is_huge && kind == RegionKind::Private,
        };
        if !is_wanted || before.shared_pages > 0 {
            return Ok((Effect::Overtaken, 0, 0));
        }
        let range = VirtRange::new(address as usize, CHUNK_BYTES);
        let (part, advice) = match action {
            Action::Promote => (range, Advice::Collapse),
            Action::Demote => (self.page_to_cool(range)?, Advice::Cold),
        };
        let huge_before = match action {
            Action::Promote => None,
            Action::Demote => self.huge_sum(&scanner, address)?,
        };
        let began = process::now_ns();
        let advised = self.handle.advise(part, advice);
        let took_ns = process::now_ns() - began;
        if let Err(errno) = advised {
            return Ok((Effect::Refused(errno.raw_os_error()), took_ns, 0));
        }
        if action == Action::Promote {
            if before.kind != RegionKind::Private {
                // The collapse leaves the huge page unmapped until its next use: this maps it.
                let _ = self.handle.advise(range, Advice::Collapse);
            }
            self.agreed.insert(address);
            // Only `PAGEMAP_SCAN` tells for a single region if it is huge; without it, this trusts the
            // advice.
            let is_huge =
                scanner.method() == Method::Entries || self.look_again(&scanner, address)?.is_huge;
            let effect = match is_huge {
                true => Effect::Done,
                false => Effect::Refused(Errno::AGAIN.raw_os_error()),
            };
            return Ok((effect, took_ns, 0));
        }
        self.agreed.remove(&address);
        let after = self.look_again(&scanner, address)?;
        let is_whole = match huge_before {
            Some(before) => self.huge_sum(&scanner, address)? >= Some(before),
            None => after.is_huge,
        };
        if is_whole {
            // The advice was accepted and the page is whole: this kernel does not split it.
            return Ok((Effect::Refused(Errno::OPNOTSUPP.raw_os_error()), took_ns, 0));
        }
        Ok((Effect::Done, took_ns, REGION_PAGES - after.pages))
    }

    /// The pages that the kernel freed of a region that was huge, or partially mapped, if it has split it since.
    pub(crate) fn freed_by_kernel(
        &self,
        address: u64,
        is_partial: bool,
    ) -> sys::Result<Option<u16>> {
        let scanner = Scanner::new(self.handle.open_file("pagemap")?);
        if is_partial {
            return Ok((!is_partially_mapped(&scanner, address)?).then_some(0));
        }
        // A kernel that splits it has `PAGEMAP_SCAN`.
        let now = self.look_again(&scanner, address)?;
        Ok((!now.is_huge && now.kind == RegionKind::Private).then_some(REGION_PAGES - now.pages))
    }

    /// The sum of huge pages in the mapping: without `PAGEMAP_SCAN`, a split shows only there.
    fn huge_sum(&self, scanner: &Scanner, address: u64) -> sys::Result<Option<u64>> {
        if scanner.method() == Method::Scan {
            return Ok(None);
        }
        let smaps = self.handle.read_file("smaps")?;
        let region = VirtRange::new(address as usize, CHUNK_BYTES);
        let all = procfs::smaps(&smaps);
        let mapping = all.iter().find(|(mapping, _)| mapping.range.covers(region));
        Ok(Some(mapping.map_or(0, |(_, usage)| usage.huge_bytes)))
    }

    /// Selects the page to mark cold: one of zeroes if there is one, as it is missed least.
    fn page_to_cool(&self, range: VirtRange) -> sys::Result<VirtRange> {
        let mut is_zero = Vec::new();
        self.handle.zero_pages(range, &mut is_zero)?;
        let page = is_zero.iter().position(|is_zero| *is_zero).unwrap_or(0);
        Ok(VirtRange::new(range.start + page * page_size_bytes(), page_size_bytes()))
    }
}

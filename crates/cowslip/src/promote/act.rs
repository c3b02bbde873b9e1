//! Doing what was decided.

use super::observe::look_again;
use super::{Action, Effect, Outcome, REGION_PAGES, Target};
use crate::sys::pagemap::Scanner;
use crate::sys::target::Advice;
use crate::sys::{self, Errno, process};
use crate::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

impl Target {
    /// Promotes or splits a region, unless it is no longer what it was: a look is some time ago.
    ///
    /// A child that is forked between the last look here and the kernel's copying shares the region
    /// after all; that costs the memory of one region, and nothing else.
    pub(super) fn act(&self, address: u64, action: Action) -> Outcome {
        let done = self.try_act(address, action);
        let (effect, took_ns, freed_pages) = match done {
            Ok(done) => done,
            Err(errno) => (Effect::Refused(errno.raw_os_error()), 0, 0),
        };
        let at_ns = process::now_ns();
        Outcome { process: self.id, address, action, at_ns, took_ns, effect, freed_pages }
    }

    fn try_act(&self, address: u64, action: Action) -> sys::Result<(Effect, u64, u16)> {
        let scanner = Scanner::new(self.handle.open_file("pagemap")?);
        let before = look_again(&scanner, address)?;
        let is_wanted = match action {
            Action::Promote => !before.is_huge && before.pages > 0,
            Action::Demote => before.is_huge,
        };
        if !is_wanted || before.shared_pages > 0 {
            return Ok((Effect::Overtaken, 0, 0));
        }
        let range = VirtRange::new(address as usize, CHUNK_BYTES);
        let (part, advice) = match action {
            Action::Promote => (range, Advice::Collapse),
            Action::Demote => (self.page_to_cool(range)?, Advice::Cold),
        };
        let began = process::now_ns();
        let advised = self.handle.advise(part, advice);
        let took_ns = process::now_ns() - began;
        if let Err(errno) = advised {
            return Ok((Effect::Refused(errno.raw_os_error()), took_ns, 0));
        }
        if action == Action::Promote {
            return Ok((Effect::Done, took_ns, 0));
        }
        let after = look_again(&scanner, address)?;
        if after.is_huge {
            // The advice was taken, and the page is whole: this kernel does not split it.
            return Ok((Effect::Refused(Errno::OPNOTSUPP.raw_os_error()), took_ns, 0));
        }
        Ok((Effect::Done, took_ns, REGION_PAGES - after.pages))
    }

    /// A page of the region that nobody misses on the list of used ones: one of zeroes.
    fn page_to_cool(&self, range: VirtRange) -> sys::Result<VirtRange> {
        let mut is_zero = Vec::new();
        self.handle.zero_pages(range, &mut is_zero)?;
        let page = is_zero.iter().position(|is_zero| *is_zero).unwrap_or(0);
        Ok(VirtRange::new(range.start + page * page_size_bytes(), page_size_bytes()))
    }
}

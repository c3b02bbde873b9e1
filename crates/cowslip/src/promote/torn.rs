//! Huge pages of which a part was released: the kernel keeps the whole until it wants for memory.
//!
//! `MADV_DONTNEED` on a part of a huge page, as allocators give it, takes that part out of the page tables. The
//! resident size shrinks; the memory is free only when the kernel's shrinker comes by. `MADV_COLD` on a base page
//! that is left splits the huge page, and what nobody maps of it is free at once. (6.18, a Redis of which 70 % was
//! deleted: 267 MiB resident, 495 MiB held before, 256 MiB after.)

use super::{Action, Effect, Outcome, Target};
use crate::sys::pagemap::{PageKinds, Scanner};
use crate::sys::target::Advice;
use crate::sys::{self, process};
use crate::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

impl Target {
    /// Splits what is left of a huge page in a region. How much that gives back no page table says: it is not
    /// counted.
    pub(super) fn mend(&self, address: u64) -> Outcome {
        let (effect, took_ns) = match self.try_mend(address) {
            Ok(done) => done,
            Err(errno) => (Effect::Refused(errno.raw_os_error()), 0),
        };
        let (action, at_ns) = (Action::Demote, process::now_ns());
        Outcome { process: self.id, address, action, at_ns, took_ns, effect, freed_pages: 0 }
    }

    fn try_mend(&self, address: u64) -> sys::Result<(Effect, u64)> {
        let scanner = Scanner::new(self.handle.open_file("pagemap")?);
        let region = VirtRange::new(address as usize, CHUNK_BYTES);
        let mut left = None;
        scanner.kinds(region, |run, kinds| {
            if kinds.contains(PageKinds::PRESENT) && !kinds.contains(PageKinds::ZERO) {
                left.get_or_insert((run.start, kinds.contains(PageKinds::HUGE)));
            }
        })?;
        let Some((start, false)) = left else { return Ok((Effect::Overtaken, 0)) };
        let began = process::now_ns();
        let advised = self.handle.advise(VirtRange::new(start, page_size_bytes()), Advice::Cold);
        let took_ns = process::now_ns() - began;
        let refused = |errno: sys::Errno| Effect::Refused(errno.raw_os_error());
        Ok((advised.map_or_else(refused, |()| Effect::Done), took_ns))
    }
}

//! A huge page got ready in advance: what makes one slow to get happens here, not to a target.
//!
//! The kernel has to move other pages together if no huge page is free, and a virtual machine's host may have
//! to find the memory behind one at its first touch, 5 ms of it. A promotion would do the latter while the target is
//! locked out. So a huge page is made in memory of our own, which writes all of it, and given back: it is the next
//! that the kernel hands out on this processor.
//!
//! While the kernel is at it, who waits for that processor waits, if it cannot be interrupted. At a page
//! fault it can: it looks after every 4 KiB that it clears. In a collapse, which is what there is where page
//! faults get no huge pages (`never`), it copies all of them at once.
//!
//! # Safety
//! The range is this value's alone, and no reference into it exists.

#![allow(unsafe_code)]

use cowslip_sys::memory::{self, Advice, Prot};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{self as sys, Errno};

/// How often a huge page is asked for that there is none of. After it failed to move pages together the kernel
/// does not try at the next requests: at up to 64 of them (`COMPACT_MAX_DEFER_SHIFT`), each of which takes some
/// 30 us. Who asks seldom would be refused for minutes.
const REQUESTS: usize = 65;

/// Address space of one huge page, empty in between.
#[derive(Debug)]
pub(super) struct HugePageReserve(VirtRange);

impl HugePageReserve {
    pub(super) fn new() -> sys::Result<Self> {
        let range = memory::reserve(CHUNK_BYTES, CHUNK_BYTES)?;
        let reserve = Self(range);
        // SAFETY: reserved just now for this value.
        unsafe {
            memory::map_anonymous(range, Prot::RW)?;
            // Best effort: without it a collapse makes the page.
            let _ = memory::advise(range, Advice::HugePage);
        }
        Ok(reserve)
    }

    /// Has the kernel find a huge page, write all of it, and take it back; `ENOMEM` if there is none.
    pub(super) fn warm(&self) -> sys::Result<()> {
        // Where page faults get huge pages, this makes one, and leaves nothing for the collapse to do.
        // SAFETY: mapped and writable, and nobody else's.
        unsafe { (self.0.start as *mut u8).write_volatile(1) };
        // SAFETY: see the module.
        let make = || unsafe { memory::advise(self.0, Advice::Collapse) };
        let mut made = make();
        for _ in 1..REQUESTS {
            if made != Err(Errno::NOMEM) {
                break;
            }
            made = make();
        }
        // SAFETY: see the module; nothing is kept in it.
        unsafe { memory::advise(self.0, Advice::DontNeed) }?;
        match made {
            // Somebody held a page or a lock: the promotion will see for itself.
            Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => Ok(()),
            made => made,
        }
    }
}

impl Drop for HugePageReserve {
    fn drop(&mut self) {
        // SAFETY: see the module; nobody can reach it any more.
        let _ = unsafe { memory::unmap(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cowslip_sys::procfs;

    #[test]
    fn a_huge_page_is_made_and_nothing_is_kept() {
        let reserve = HugePageReserve::new().unwrap();
        match reserve.warm() {
            // No huge page is free at the moment.
            Ok(()) | Err(Errno::NOMEM) => {}
            Err(errno) => panic!("{errno}"),
        }
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let held = procfs::smaps(&smaps).into_iter().find(|(it, _)| it.range.covers(reserve.0));
        assert_eq!(held.unwrap().1.resident_bytes, 0);
    }
}

//! A huge page prepared in advance: the slow part of getting one happens here, not in a target.
//!
//! The kernel has to move other pages together if no huge page is free, and a virtual machine's host may have
//! to find the memory behind one at its first touch, which takes 5 ms. A promotion would do the latter while
//! the target is locked out. Therefore this makes a huge page in its own memory, writes all of it, and
//! releases it: the kernel hands it out next on this processor.
//!
//! Meanwhile, threads that need this processor wait if the kernel cannot be interrupted. In a page fault it
//! can: it checks after every 4 KiB that it clears. A collapse, the only way where page faults get no huge
//! pages (`never`), copies all of them at once.
//!
//! # Safety
//! The range is this value's alone, and no reference into it exists.

#![allow(unsafe_code)]

use cowslip_sys::memory::{self, Advice, Prot};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{self as sys, Errno};

/// How often a huge page is requested while there is none. After failing to move pages together, the kernel
/// does not try for up to 64 further requests (`COMPACT_MAX_DEFER_SHIFT`), each of which takes some 30 us. A
/// caller that asks seldom would be refused for minutes.
const REQUESTS: usize = 65;

/// Address space of one huge page, empty in between.
#[derive(Debug)]
pub(super) struct HugePageReserve(VirtRange);

impl HugePageReserve {
    pub(super) fn new() -> sys::Result<Self> {
        let range = memory::reserve(CHUNK_BYTES, CHUNK_BYTES)?;
        let reserve = Self(range);
        // SAFETY: the range was just reserved for this value.
        unsafe {
            memory::map_anonymous(range, Prot::RW)?;
            // Best effort: without the advice, the collapse makes the page.
            let _ = memory::advise(range, Advice::HugePage);
        }
        Ok(reserve)
    }

    /// Makes the kernel find a huge page, write all of it, and take it back; `ENOMEM` if there is none.
    pub(super) fn warm(&self) -> sys::Result<()> {
        // Where page faults get huge pages, this makes one, and the collapse has nothing left to do.
        // SAFETY: the range is mapped, writable and this value's alone.
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
        // SAFETY: see the module; the range holds nothing worth keeping.
        unsafe { memory::advise(self.0, Advice::DontNeed) }?;
        match made {
            // A page or a lock was held elsewhere: the promotion will find out.
            Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => Ok(()),
            made => made,
        }
    }
}

impl Drop for HugePageReserve {
    fn drop(&mut self) {
        // SAFETY: see the module; nothing uses the range after this value.
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
            // No huge page may be free at the moment.
            Ok(()) | Err(Errno::NOMEM) => {}
            Err(errno) => panic!("{errno}"),
        }
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let held =
            procfs::smaps(&smaps).into_iter().find(|(mapping, _)| mapping.range.covers(reserve.0));
        assert_eq!(held.unwrap().1.resident_bytes, 0);
    }
}

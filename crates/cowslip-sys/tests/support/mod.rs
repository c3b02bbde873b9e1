//! Helpers for the tests of this crate.
#![allow(dead_code, unreachable_pub, unsafe_code, reason = "each test binary uses its part")]

use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::memory::{self, Prot, Sharing};
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, OwnedFd};

/// Reports that a test could not run; `COWSLIP_EXPECT` makes that a failure.
pub fn skip(capability: &str, why: &str) {
    let declared = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
    let is_declared = declared.split(',').any(|name| name.trim() == capability);
    assert!(!is_declared, "{capability} is declared present, but: {why}");
    println!("SKIPPED: {capability}: {why}");
}

/// Pages of a memfd, mapped at an address of their own.
pub struct Mapped {
    pub file: OwnedFd,
    pub range: VirtRange,
}

impl Mapped {
    /// `pages` pages, all holding their number plus one in the file.
    pub fn new(pages: usize, sharing: Sharing) -> Self {
        let page = page_size_bytes();
        let len = pages * page;
        let file = memfile::memfd("test", MemfdKind::Shmem, len as u64).unwrap();
        for i in 0..pages {
            let value = [i as u8 + 1; 8];
            // SAFETY: the array is mapped, and no thread writes to it.
            unsafe {
                let source = VirtRange::new(value.as_ptr() as usize, value.len());
                memfile::write_range_at(file.as_fd(), source, (i * page) as u64).unwrap();
            }
        }
        let range = memory::reserve(len, page).unwrap();
        // SAFETY: reserved just now for this.
        unsafe { memory::map_file(range, file.as_fd(), 0, sharing, Prot::RW) }.unwrap();
        Self { file, range }
    }

    pub fn page(&self, i: usize) -> VirtRange {
        VirtRange::new(self.range.start + i * page_size_bytes(), page_size_bytes())
    }

    pub fn read(&self, i: usize) -> u8 {
        // SAFETY: inside the mapping.
        unsafe { (self.page(i).start as *const u8).read_volatile() }
    }

    pub fn write(&self, i: usize, value: u8) {
        // SAFETY: inside the mapping; a fault may wait, as the test intends.
        unsafe { (self.page(i).start as *mut u8).write_volatile(value) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { memory::unmap(self.range) }.unwrap();
    }
}

/// Returns true if the system has swap: then a page that is not present may still be a private copy.
pub fn has_swap() -> bool {
    rustix::system::sysinfo().totalswap > 0
}

//! The state of the system that promotion depends on.

use super::System;
use crate::error::During;
use crate::sys::procfs;
use crate::units::{CHUNK_BYTES, page_size_bytes};

impl System {
    /// Looks at this machine. Where the kernel does not measure pressure, there is none.
    pub fn look() -> crate::Result<Self> {
        let (available_bytes, total_bytes) =
            procfs::available_bytes().during("read /proc/meminfo")?;
        let orders = procfs::buddy_orders().during("read /proc/buddyinfo")?;
        let pressure = procfs::memory_pressure().unwrap_or_default();
        let (free_huge_pages, fragmentation_percent) = huge_of(&orders.free);
        Ok(Self {
            available_bytes,
            total_bytes,
            free_huge_pages,
            fragmentation_percent,
            pressure_percent: pressure.some_avg10_percent,
        })
    }
}

/// Free huge pages in free blocks by order, and the percentage of free memory outside of them.
fn huge_of(free_blocks: &[u64]) -> (u64, u8) {
    let huge_order = (CHUNK_BYTES / page_size_bytes()).trailing_zeros() as usize;
    let pages = |(order, blocks): (usize, &u64)| blocks << order;
    let all: u64 = free_blocks.iter().enumerate().map(pages).sum();
    let huge: u64 = free_blocks.iter().enumerate().skip(huge_order).map(pages).sum();
    let percent = ((all - huge) * 100).checked_div(all).unwrap_or(100);
    (huge >> huge_order, percent as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_in_pieces_is_fragmented() {
        assert_eq!(huge_of(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]), (5, 0));
        assert_eq!(huge_of(&[512, 256, 0, 0, 0, 0, 0, 0, 0, 1]), (1, 66));
        assert_eq!(huge_of(&[7]), (0, 100));
        assert_eq!(huge_of(&[]), (0, 100));
        let system = System::look().unwrap();
        assert!(system.available_bytes > 0 && system.fragmentation_percent <= 100);
    }
}

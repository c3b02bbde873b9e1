//! The state of the system that promotion depends on.
//!
//! Where debugfs is mounted, the kernel reports both indices of fragmentation in `/sys/kernel/debug/extfrag`,
//! zone by zone. They follow from the free blocks in `/proc/buddyinfo`, which every user can read: this uses
//! that file, over all zones.

use cowslip_sys::error::During;
use cowslip_sys::procfs;
use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};
use serde::{Deserialize, Serialize};

/// Orders of blocks that are distinguished: of 2^0 to 2^10 pages.
pub const ORDERS: usize = 11;

/// One look at the system.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct System {
    /// Memory that programs can have without swapping.
    pub available_bytes: u64,
    /// All memory.
    pub total_bytes: u64,
    /// Free memory in pieces of a huge page, in huge pages.
    pub free_huge_pages: u64,
    /// Free memory in smaller pieces, percent of all free memory: Ingens' FMFI of huge pages.
    pub fragmentation_percent: u8,
    /// Free blocks of each order; a larger block counts as several of the last order.
    #[serde(default)]
    pub free_blocks: [u64; ORDERS],
    /// Time in which some task waited for memory, percent of the last ten seconds.
    pub pressure_percent: f64,
}

impl System {
    /// Looks at this machine. Pressure is zero where the kernel does not measure it.
    pub fn look() -> cowslip_sys::error::Result<Self> {
        let (available_bytes, total_bytes) =
            procfs::available_bytes().during("read /proc/meminfo")?;
        let orders = procfs::buddy_orders().during("read /proc/buddyinfo")?;
        let pressure = procfs::memory_pressure().unwrap_or_default();
        let system = Self {
            available_bytes,
            total_bytes,
            free_blocks: fold(&orders.free),
            pressure_percent: pressure.some_avg10_percent,
            ..Self::default()
        };
        let order = huge_order();
        Ok(Self {
            free_huge_pages: system.suitable_blocks(order),
            fragmentation_percent: system.unusable_percent(order),
            ..system
        })
    }

    /// Free memory in blocks too small for one of 2^`order` pages, percent of all free memory: the kernel's
    /// `unusable_index`, Ingens' FMFI. 100 if no memory is free.
    pub fn unusable_percent(&self, order: usize) -> u8 {
        let free = self.free_pages();
        let usable = self.suitable_blocks(order) << order;
        ((free - usable) * 100).checked_div(free).unwrap_or(100) as u8
    }

    /// Why an allocation of 2^`order` pages would fail: towards 0 for lack of memory, towards 1 because free
    /// memory is in pieces, so that compaction would help; `None` if it would not fail. The kernel's
    /// `extfrag_index`.
    ///
    /// ```
    /// use cowslip_promote::System;
    /// let mut system = System::default();
    /// system.free_blocks[0] = 2048;
    /// assert!(system.fragmentation_index(9).unwrap() > 0.99);
    /// system.free_blocks[9] = 1;
    /// assert_eq!(system.fragmentation_index(9), None);
    /// ```
    pub fn fragmentation_index(&self, order: usize) -> Option<f64> {
        if self.suitable_blocks(order) > 0 {
            return None;
        }
        let blocks: u64 = self.free_blocks.iter().sum();
        if blocks == 0 {
            return Some(0.0);
        }
        let wanted = self.free_pages() as f64 / (1u64 << order) as f64;
        Some((1.0 - (1.0 + wanted) / blocks as f64).max(0.0))
    }

    /// Free blocks of 2^`order` pages, including those in larger blocks.
    fn suitable_blocks(&self, order: usize) -> u64 {
        let larger = self.free_blocks.iter().enumerate().skip(order);
        larger.map(|(its, blocks)| blocks << (its - order)).sum()
    }

    fn free_pages(&self) -> u64 {
        self.suitable_blocks(0)
    }
}

fn huge_order() -> usize {
    (CHUNK_BYTES / page_size_bytes()).trailing_zeros() as usize
}

fn fold(free: &[u64]) -> [u64; ORDERS] {
    let mut all = [0; ORDERS];
    for (order, blocks) in free.iter().enumerate() {
        let kept = order.min(ORDERS - 1);
        all[kept] += blocks << (order - kept);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system_with(free: &[u64]) -> System {
        System { free_blocks: fold(free), ..System::default() }
    }

    #[test]
    fn free_memory_in_pieces_is_fragmented() {
        let whole = system_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!((whole.suitable_blocks(9), whole.unusable_percent(9)), (5, 0));
        let mixed = system_with(&[512, 256, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((mixed.suitable_blocks(9), mixed.unusable_percent(9)), (1, 66));
        assert_eq!((mixed.unusable_percent(0), mixed.unusable_percent(1)), (0, 33));
        assert_eq!(system_with(&[7]).unusable_percent(9), 100);
        assert_eq!(system_with(&[]).unusable_percent(9), 100);
        let large = system_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(large.suitable_blocks(9), 8, "orders above the last");
        let system = System::look().unwrap();
        assert!(system.available_bytes > 0 && system.fragmentation_percent <= 100);
        assert!(system.free_pages() > 0);
    }

    #[test]
    fn a_lack_of_memory_is_no_fragmentation() {
        assert_eq!(system_with(&[]).fragmentation_index(9), Some(0.0));
        assert!(system_with(&[1]).fragmentation_index(9).unwrap() < 0.01);
        assert!(system_with(&[100_000]).fragmentation_index(9).unwrap() > 0.99);
        assert_eq!(system_with(&[0, 1]).fragmentation_index(1), None);
    }

    /// Compares with the kernel's own figures, where available: a line a zone, a number an order.
    #[test]
    fn the_indices_are_the_kernels() {
        let Ok(text) = std::fs::read_to_string("/sys/kernel/debug/extfrag/unusable_index") else {
            println!("SKIPPED: extfrag: debugfs is not mounted");
            return;
        };
        let buddyinfo = std::fs::read_to_string("/proc/buddyinfo").unwrap();
        let zones = buddyinfo.lines().zip(text.lines());
        let mut compared = 0;
        for (free, wanted) in zones {
            let system = system_with(&procfs::BuddyOrders::parse(free).free);
            let (_, wanted) = wanted.split_once("zone").unwrap();
            let wanted: Vec<f64> =
                wanted.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
            for (order, wanted) in wanted.iter().enumerate().take(ORDERS) {
                let ours = f64::from(system.unusable_percent(order)) / 100.0;
                // Memory comes and goes between the two files.
                assert!((ours - wanted).abs() < 0.1, "order {order}: {ours} and {wanted}\n{free}");
                compared += 1;
            }
        }
        assert!(compared > 0);
    }
}

//! Memory of the machine: how much is free, in blocks of which sizes, and the time that tasks wait
//! for it.

use super::{field_bytes, read_text};
use crate::Result;

/// Free blocks by order: `free[n]` blocks of 2^n pages, over all zones (`/proc/buddyinfo`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BuddyOrders {
    /// How many blocks of each order are free.
    pub free: Vec<u64>,
}

impl BuddyOrders {
    /// Reads the text of `/proc/buddyinfo`.
    ///
    /// ```
    /// use cowslip_sys::procfs::BuddyOrders;
    /// let orders = BuddyOrders::parse("Node 0, zone DMA 1 0 2\nNode 0, zone Normal 3 4 5\n");
    /// assert_eq!(orders.free, [4, 4, 7]);
    /// ```
    pub fn parse(text: &str) -> Self {
        let mut free = Vec::new();
        for line in text.lines() {
            let Some((_, zone)) = line.split_once("zone") else { continue };
            let counts = zone.split_ascii_whitespace().skip(1);
            for (order, blocks) in counts.filter_map(|word| word.parse::<u64>().ok()).enumerate() {
                if order == free.len() {
                    free.push(0);
                }
                free[order] += blocks;
            }
        }
        Self { free }
    }
}

/// Share of time in which tasks waited for memory (`/proc/pressure/memory`).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Pressure {
    /// Some task waited, percent of the last ten seconds.
    pub some_avg10_percent: f64,
    /// Every task waited.
    pub full_avg10_percent: f64,
}

impl Pressure {
    /// Reads the text of `/proc/pressure/memory`, or of a control group's `memory.pressure`.
    pub fn parse(text: &str) -> Self {
        let percent = |kind: &str| {
            let line = text.lines().find(|line| line.starts_with(kind))?;
            line.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
        };
        Self {
            some_avg10_percent: percent("some").unwrap_or(0.0),
            full_avg10_percent: percent("full").unwrap_or(0.0),
        }
    }
}

/// The free blocks of this machine.
pub fn buddy_orders() -> Result<BuddyOrders> {
    read_text("/proc/buddyinfo").map(|text| BuddyOrders::parse(&text))
}

/// The waiting for memory on this machine; `ENOENT` or `EOPNOTSUPP` where the kernel does not measure it.
pub fn memory_pressure() -> Result<Pressure> {
    read_text("/proc/pressure/memory").map(|text| Pressure::parse(&text))
}

/// Returns true if any program has freed memory lazily (`MADV_FREE`) since the machine started (`pglazyfree` of
/// `/proc/vmstat`), or the kernel does not count it.
pub fn has_lazily_freed() -> bool {
    let text = read_text("/proc/vmstat").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("pglazyfree ")) != Some("0")
}

/// The memory that programs can have without swapping, and the total, in bytes (`MemAvailable`,
/// `MemTotal` of `/proc/meminfo`).
pub fn available_bytes() -> Result<(u64, u64)> {
    let text = read_text("/proc/meminfo")?;
    let bytes = |name| field_bytes(&text, name).unwrap_or(0);
    Ok((bytes("MemAvailable"), bytes("MemTotal")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_and_this_machine_has_memory() {
        let text =
            "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.25 avg60=0 total=1\n";
        let pressure = Pressure::parse(text);
        assert_eq!((pressure.some_avg10_percent, pressure.full_avg10_percent), (1.5, 0.25));
        assert_eq!(Pressure::parse(""), Pressure::default());
        let (available, total) = available_bytes().unwrap();
        assert!(0 < available && available <= total);
        assert!(buddy_orders().unwrap().free.len() > 9, "an order for huge pages");
    }
}

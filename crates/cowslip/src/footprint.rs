//! The memory of a process, by `/proc/PID/smaps` (`proc_pid_smaps(5)`) and the arena's file.

use std::os::unix::fs::MetadataExt;

use cowslip_sys::procfs::usage_of;
use cowslip_sys::units::VirtRange;

use crate::metrics::Metrics;

/// The unit of `st_blocks` (`inode(7)`).
const BLOCK_BYTES: u64 = 512;

/// Memory of a process, in bytes: in an arena and elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Memory held because of the arena: its file, mapped or not, and private copies. Forked children have the file
    /// too.
    pub held_bytes: u64,
    /// The arena's pages that are mapped.
    pub resident_bytes: u64,
    /// Private copies among them.
    pub private_bytes: u64,
    /// Those mapped by huge pages.
    pub huge_mapped_bytes: u64,
    /// Anonymous memory outside the arena: stacks, small mappings, mappings that did not fit.
    pub elsewhere_bytes: u64,
}

impl Footprint {
    /// Measures the process `pid`, by the text of its `smaps` and the counters of its arena.
    pub fn measure(pid: i32, smaps: &str, metrics: &Metrics) -> Self {
        let (start, len) = (metrics.arena_start_address, metrics.capacity_bytes);
        let held = |number: u64| {
            let file = std::fs::metadata(format!("/proc/{pid}/fd/{number}"));
            file.map_or(0, |file| file.blocks() * BLOCK_BYTES)
        };
        // A child closes files that it does not own.
        let file_bytes = match metrics.is_owner {
            0 => 0,
            _ => metrics.descriptors().map(held).sum(),
        };
        Self::parse(smaps, VirtRange::new(start as usize, len as usize), file_bytes)
    }

    /// Reads the text of `smaps`; `arena` is the arena's range, and its file holds `file_bytes`.
    ///
    /// ```
    /// use cowslip::{Footprint, units::VirtRange};
    ///
    /// let smaps = "1000-3000 rw-p 00000000 00:00 0\nRss: 8 kB\nAnonymous: 4 kB\n\
    ///              3000-4000 rw-p 00000000 00:00 0\nRss: 4 kB\nAnonymous: 4 kB\n";
    /// let footprint = Footprint::parse(smaps, VirtRange::between(0x1000, 0x3000), 12 << 10);
    /// assert_eq!(footprint.held_bytes, 16 << 10);
    /// assert_eq!(footprint.resident_bytes, 8 << 10);
    /// assert_eq!(footprint.elsewhere_bytes, 4 << 10);
    /// assert_eq!(footprint.in_arena_percent(), 80.0);
    /// ```
    pub fn parse(smaps: &str, arena: VirtRange, file_bytes: u64) -> Self {
        let inside = usage_of(smaps, |mapping| arena.covers(mapping.range));
        let outside = usage_of(smaps, |mapping| !arena.covers(mapping.range));
        Self {
            held_bytes: file_bytes + inside.anonymous_bytes,
            resident_bytes: inside.resident_bytes,
            private_bytes: inside.anonymous_bytes,
            huge_mapped_bytes: inside.huge_mapped_bytes(),
            elsewhere_bytes: outside.anonymous_bytes,
        }
    }

    /// The part of the process' anonymous memory that is in the arena, in percent. It includes memory that is not
    /// mapped at this moment, which is most of it after a fork.
    pub fn in_arena_percent(&self) -> f64 {
        // A child that does not own the file maps it.
        let inside = self.held_bytes.max(self.resident_bytes);
        inside as f64 * 100.0 / (inside + self.elsewhere_bytes).max(1) as f64
    }
}

//! Where a process' memory is, as `/proc/PID/smaps` says (`proc_pid_smaps(5)`).

use cowslip_sys::procfs::usage_of;
use cowslip_sys::units::VirtRange;

/// Memory of a process, in bytes: in an arena and elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// The arena's pages that are mapped.
    pub resident_bytes: u64,
    /// Private copies among them.
    pub private_bytes: u64,
    /// Those mapped by huge pages.
    pub huge_mapped_bytes: u64,
    /// Anonymous memory outside the arena: stacks, small mappings, what went past it.
    pub elsewhere_bytes: u64,
}

impl Footprint {
    /// Reads the text of `smaps`; `arena` is where the arena lies.
    ///
    /// ```
    /// use cowslip::{Footprint, units::VirtRange};
    ///
    /// let smaps = "1000-3000 rw-p 00000000 00:00 0\nRss: 8 kB\nAnonymous: 4 kB\n\
    ///              3000-4000 rw-p 00000000 00:00 0\nRss: 4 kB\nAnonymous: 4 kB\n";
    /// let footprint = Footprint::parse(smaps, VirtRange::between(0x1000, 0x3000));
    /// assert_eq!(footprint.resident_bytes, 8 << 10);
    /// assert_eq!(footprint.elsewhere_bytes, 4 << 10);
    /// ```
    pub fn parse(smaps: &str, arena: VirtRange) -> Self {
        let inside = usage_of(smaps, |mapping| arena.covers(mapping.range));
        let outside = usage_of(smaps, |mapping| !arena.covers(mapping.range));
        Self {
            resident_bytes: inside.resident_bytes,
            private_bytes: inside.anonymous_bytes,
            huge_mapped_bytes: inside.huge_mapped_bytes(),
            elsewhere_bytes: outside.anonymous_bytes,
        }
    }

    /// How much of the process' anonymous memory is in the arena, of a hundred.
    pub fn in_arena_percent(&self) -> f64 {
        let all = (self.resident_bytes + self.elsewhere_bytes).max(1);
        self.resident_bytes as f64 * 100.0 / all as f64
    }
}

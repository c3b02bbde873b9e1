//! The arenas of a running program, read from its memory and `/proc`.
//!
//! The program runs no code for it: the page of counters is found by its name in `/proc/PID/maps` and read through
//! `/proc/PID/mem`, so this works for a stopped program too.

use std::fs;
use std::io;

use cowslip::{Footprint, Metrics};
use cowslip_sys::procfs;
use cowslip_sys::target::Target;
use cowslip_sys::units::{VirtRange, page_size_bytes};

pub(super) struct Arena {
    pub(super) metrics: Metrics,
    pub(super) footprint: Footprint,
}

impl Arena {
    /// The arenas of a process.
    pub(super) fn of(pid: i32) -> io::Result<Vec<Self>> {
        let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
        let target = Target::open(pid)?;
        let mut arenas = Vec::new();
        for mapping in procfs::mappings(&smaps).filter(|it| it.is_memfd(cowslip::raw::PAGE_NAME)) {
            let page = VirtRange::new(mapping.range.start, page_size_bytes());
            let page = target.read_memory(page)?;
            if let Some(metrics) = Metrics::from_page(&page) {
                let footprint = Footprint::measure(pid, &smaps, &metrics);
                arenas.push(Self { metrics, footprint });
            }
        }
        Ok(arenas)
    }

    pub(super) fn state(&self) -> &'static str {
        match (self.metrics.is_owner, self.metrics.frozen_chunks) {
            (0, _) => "inherited",
            (_, 0) => "live",
            _ => "frozen",
        }
    }
}

/// Returns true if a process is known to have an arena.
pub(super) fn has_arena(pid: i32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
    maps.is_ok_and(|maps| procfs::mappings(&maps).any(|it| it.is_memfd(cowslip::raw::PAGE_NAME)))
}

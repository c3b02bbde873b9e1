//! The arenas of a running program, read from its memory and `/proc`.
//!
//! The program runs no code for it: the page of counters is found by its name in `/proc/PID/maps` and read through
//! `/proc/PID/mem`, so this works for a stopped program too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use cowslip::{Footprint, Metrics};
use cowslip_sys::procfs;

pub(super) struct Arena {
    pub(super) metrics: Metrics,
    pub(super) footprint: Footprint,
}

impl Arena {
    /// The arenas of a process.
    pub(super) fn of(pid: i32) -> io::Result<Vec<Self>> {
        let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let mut arenas = Vec::new();
        for mapping in
            procfs::mappings(&smaps).filter(|it| it.name.contains(cowslip::raw::PAGE_NAME))
        {
            let mut page = [0u8; 4096];
            memory.read_exact_at(&mut page, mapping.range.start as u64)?;
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
    maps.is_ok_and(|maps| maps.contains(cowslip::raw::PAGE_NAME))
}

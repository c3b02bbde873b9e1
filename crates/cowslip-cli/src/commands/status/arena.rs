//! The arenas of a running program, as its memory and `/proc` tell of them.
//!
//! Nothing runs in the program for it: the page of counters is found by its name in `/proc/PID/maps` and read through
//! `/proc/PID/mem`, so that it works for a stopped program too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use cowslip::units::VirtRange;
use cowslip::{Footprint, Metrics};
use cowslip_sys::procfs;

/// What `st_blocks` counts (`inode(7)`).
const BLOCK_BYTES: u64 = 512;

pub(super) struct Arena {
    pub(super) metrics: Metrics,
    pub(super) footprint: Footprint,
    /// What its file holds, shared with the processes that were forked.
    pub(super) file_bytes: u64,
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
                arenas.push(Self::measure(pid, metrics, &smaps));
            }
        }
        Ok(arenas)
    }

    fn measure(pid: i32, metrics: Metrics, smaps: &str) -> Self {
        let (start, len) = (metrics.arena_start_address, metrics.capacity_bytes);
        let range = VirtRange::new(start as usize, len as usize);
        // A child closes what it does not own.
        let held = |number: u64| {
            let file = fs::metadata(format!("/proc/{pid}/fd/{number}"));
            file.map_or(0, |file| file.blocks() * BLOCK_BYTES)
        };
        let file_bytes = match metrics.is_owner {
            0 => 0,
            _ => metrics.descriptors().map(held).sum(),
        };
        Self { metrics, footprint: Footprint::parse(smaps, range), file_bytes }
    }

    /// Memory that is there because of it: what is mapped, what is not, and copies.
    pub(super) fn held_bytes(&self) -> u64 {
        self.file_bytes + self.footprint.private_bytes
    }

    pub(super) fn state(&self) -> &'static str {
        match (self.metrics.is_owner, self.metrics.frozen_chunks) {
            (0, _) => "inherited",
            (_, 0) => "live",
            _ => "frozen",
        }
    }
}

/// Whether a process has an arena, as far as one may look.
pub(super) fn has_arena(pid: i32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
    maps.is_ok_and(|maps| maps.contains(cowslip::raw::PAGE_NAME))
}

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

/// What a process says of its arenas.
#[derive(Default)]
pub(super) struct Arenas {
    pub(super) known: Vec<Arena>,
    /// It has arenas of another version of Cowslip, too.
    pub(super) has_others: bool,
}

impl Arenas {
    /// The arenas of a process.
    pub(super) fn read(pid: i32) -> io::Result<Self> {
        let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
        let target = Target::open(pid)?;
        let mut arenas = Self::default();
        for page in pages_in(&smaps) {
            let page = match target.read_memory(page.range) {
                Ok(page) => page,
                Err(_) if !pages(pid)?.contains(&page) => continue, // The program ended this arena meanwhile.
                Err(error) => return Err(error.into()),
            };
            if let Some(metrics) = Metrics::from_page(&page) {
                let footprint = Footprint::measure(pid, &smaps, &metrics);
                arenas.known.push(Arena { metrics, footprint });
            }
            arenas.has_others |= Metrics::is_of_another_version(&page);
        }
        Ok(arenas)
    }
}

impl Arena {
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
    pages(pid).is_ok_and(|pages| !pages.is_empty())
}

/// A page of counters of one arena. Another arena's at the same address is another file.
#[derive(PartialEq, Eq)]
struct CounterPage {
    range: VirtRange,
    inode: u64,
}

/// The pages of counters that a process has now.
fn pages(pid: i32) -> io::Result<Vec<CounterPage>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(pages_in(&maps).collect())
}

/// The pages of counters in the text of `maps` or `smaps`.
fn pages_in(maps: &str) -> impl Iterator<Item = CounterPage> {
    let pages = procfs::mappings(maps).filter(|mapping| mapping.is_memfd(cowslip::raw::PAGE_NAME));
    pages.map(|mapping| CounterPage {
        range: VirtRange::new(mapping.range.start, page_size_bytes()),
        inode: mapping.inode,
    })
}

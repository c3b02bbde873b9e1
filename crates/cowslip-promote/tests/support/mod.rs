//! Regions of this process, and a promoter that acts on them alone. One test runs at a time, because a child that one
//! test forks shares the memory of all.
#![allow(unsafe_code, dead_code, unreachable_pub)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cowslip_promote::{ActionOutcome, Decision, Promoter, Reason, Settings, Target};
use cowslip_sys::memory::{self, Advice, Prot};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{process, procfs};

static ALONE: Mutex<()> = Mutex::new(());

pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Regions of base pages, of which promotion may make huge ones.
///
/// A chunk without access on either side keeps the kernel from merging them with a neighbour into one mapping.
pub struct Regions {
    pub range: VirtRange,
    reserved: VirtRange,
    _alone: MutexGuard<'static, ()>,
}

impl Regions {
    /// One region for each number, with that many written pages.
    pub fn new(pages: &[usize]) -> Self {
        let alone = alone();
        let bytes = pages.len() * CHUNK_BYTES;
        let reserved = memory::reserve(bytes + 2 * CHUNK_BYTES, CHUNK_BYTES).unwrap();
        let range = VirtRange::new(reserved.start + CHUNK_BYTES, bytes);
        let regions = Self { range, reserved, _alone: alone };
        // SAFETY: the range was reserved for this value.
        unsafe { memory::map_anonymous(range, Prot::RW) }.unwrap();
        // khugepaged also promotes memory for which huge pages were requested, unnoticed by the tests.
        let are_forced = procfs::Thp::read().unwrap().enabled == procfs::Policy::Always;
        if are_forced {
            regions.advise(range, Advice::NoHugePage);
        }
        for (number, pages) in pages.iter().enumerate() {
            (0..*pages).for_each(|page| regions.word(number, page).store(page as u64 + 1, Relaxed));
        }
        if are_forced {
            regions.advise(range, Advice::HugePage);
        }
        regions
    }

    pub fn advise(&self, range: VirtRange, advice: Advice) {
        assert!(self.range.covers(range));
        // SAFETY: the value's own memory, to which only atomic references are made.
        unsafe { memory::advise(range, advice) }.unwrap();
    }

    pub fn region(&self, number: usize) -> VirtRange {
        VirtRange::new(self.range.start + number * CHUNK_BYTES, CHUNK_BYTES)
    }

    pub fn word(&self, number: usize, page: usize) -> &AtomicU64 {
        let address = self.region(number).start + page * page_size_bytes();
        // SAFETY: inside the mapping, aligned, and used as an atomic only.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }
    }

    /// A hash of every byte.
    pub fn checksum(&self) -> u64 {
        // SAFETY: inside the mapping; no thread writes while a test computes the sum.
        let words = unsafe {
            std::slice::from_raw_parts(self.range.start as *const u64, self.range.len / 8)
        };
        words.iter().fold(0, |sum: u64, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9))
    }

    /// Huge and anonymous bytes, as the kernel sums them up.
    pub fn in_smaps(&self) -> (u64, u64) {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let all = procfs::smaps(&text);
        let mine = all.iter().filter(|(mapping, _)| self.range.covers(mapping.range));
        mine.fold((0, 0), |sum, (_, usage)| {
            (sum.0 + usage.huge_bytes, sum.1 + usage.anonymous_bytes)
        })
    }

    pub fn number(&self, decision: &Decision) -> Option<usize> {
        let offset = (decision.address as usize).checked_sub(self.range.start)?;
        (offset < self.range.len).then_some(offset / CHUNK_BYTES)
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        // SAFETY: the value's own memory.
        unsafe { memory::unmap(self.reserved) }.unwrap();
    }
}

/// This process, promoted; only the regions of a test are acted on.
pub struct Promotion<'a> {
    pub promoter: Promoter,
    regions: &'a Regions,
}

pub const FOREVER_NS: u64 = 10_000_000_000;

/// Settings that let a busy machine do the tested actions.
pub fn unhurried() -> Settings {
    Settings {
        stall_percent: 100.0,
        slow_ms: 10_000,
        pressure_percent: 100.0,
        ..Settings::default()
    }
}

impl<'a> Promotion<'a> {
    pub fn from_regions(regions: &'a Regions) -> Self {
        let mut promoter = Promoter::new(unhurried()).unwrap();
        promoter.add(Target::open(process::pid(), 1).unwrap());
        Self { promoter, regions }
    }

    pub fn decide(&mut self) -> Vec<(usize, Decision)> {
        let (look, gone) = self.promoter.look(FOREVER_NS).unwrap();
        assert!(gone.is_empty());
        let decisions = self.promoter.decide(&look);
        decisions
            .iter()
            .filter_map(|decision| Some((self.regions.number(decision)?, *decision)))
            .collect()
    }

    /// The reasons, by number of region.
    pub fn reasons(&mut self) -> Vec<(usize, Reason)> {
        let mut reasons: Vec<_> =
            self.decide().iter().map(|(n, decision)| (*n, decision.reason)).collect();
        reasons.sort_unstable();
        reasons
    }

    pub fn act(&mut self) -> Vec<ActionOutcome> {
        let decisions = self.decide();
        decisions.iter().filter_map(|(_, decision)| self.promoter.act(decision)).collect()
    }
}

/// A forked child that waits.
pub struct Child(pub i32, std::io::PipeWriter);

impl Child {
    pub fn fork() -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the child only closes one end of a pipe, reads from the other, and ends.
        let pid = unsafe { process::fork() }.unwrap();
        if pid == 0 {
            drop(writer);
            let _ = std::io::Read::read(&mut &reader, &mut [0]);
            process::exit_now(0);
        }
        Self(pid, writer)
    }

    pub fn end(self) {
        drop(self.1);
        process::wait_for(self.0).unwrap();
    }
}

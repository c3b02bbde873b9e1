//! What the tests share: oracles that ask the kernel, and writers that never stop.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use cowslip::units::{ByteCount, VirtRange};
use cowslip::{Arena, ArenaSlice};

/// Long enough for anything that works.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Sum of a field of `/proc/self/smaps`, in bytes, over the mappings inside `range`.
pub fn smaps_bytes(range: VirtRange, field: &str) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut inside = false;
    let mut total = 0;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or("");
        if let Some((start, end)) = first.split_once('-') {
            let start = usize::from_str_radix(start, 16).expect("an address");
            let end = usize::from_str_radix(end, 16).expect("an address");
            inside = range.covers(VirtRange::between(start, end));
        } else if inside && first.trim_end_matches(':') == field {
            let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().expect("kB");
            total += kib << 10;
        }
    }
    total
}

/// Bytes of `range` that are mapped by 2 MiB entries.
pub fn huge_mapped_bytes(range: VirtRange) -> u64 {
    smaps_bytes(range, "ShmemPmdMapped") + smaps_bytes(range, "FilePmdMapped")
}

/// Small, fast, good enough to scatter writes.
pub struct Scatter(pub u64);

impl Scatter {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A shared view of `u64` counters in an arena, for threads that increment them.
#[derive(Clone)]
pub struct Counters {
    slice: Arc<ArenaSlice<u64>>,
}

impl Counters {
    pub fn new(arena: &Arena, bytes: ByteCount) -> Self {
        Self { slice: Arc::new(arena.slice(bytes.0 as usize / 8).expect("counters")) }
    }

    pub fn slice(&self) -> &ArenaSlice<u64> {
        &self.slice
    }

    pub fn len(&self) -> usize {
        self.slice.len()
    }

    #[allow(unsafe_code)]
    pub fn at(&self, i: usize) -> &AtomicU64 {
        let place = &raw const self.slice[i];
        // SAFETY: aligned, alive as long as self, and all access from tests is through atomics.
        unsafe { AtomicU64::from_ptr(place.cast_mut()) }
    }

    pub fn sum(&self) -> u64 {
        (0..self.len()).map(|i| self.at(i).load(Relaxed)).sum()
    }
}

/// Threads that increment counters all over an arena until they are stopped.
pub struct Writers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Writers {
    /// Thread `t` of `n` owns the counters whose index is `t` modulo `n`, as plain stores lose no
    /// update only to their own counters.
    pub fn start(counters: &Counters, n: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..n)
            .map(|t| {
                let (counters, stop) = (counters.clone(), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let mut scatter = Scatter(0x9e37_79b9_7f4a_7c15 ^ (t as u64 + 1));
                    let mut written = 0;
                    while !stop.load(Relaxed) {
                        let i = (scatter.next() as usize % (counters.len() / n)) * n + t;
                        let counter = counters.at(i);
                        counter.store(counter.load(Relaxed) + 1, Relaxed);
                        written += 1;
                    }
                    written
                })
            })
            .collect();
        Self { stop, threads }
    }

    /// How many increments they made.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().map(|thread| thread.join().expect("a writer")).sum()
    }
}

/// A checksum that depends on the place of every value.
pub fn checksum(values: &[u64]) -> u64 {
    values.iter().enumerate().fold(0, |sum: u64, (i, &value)| {
        sum.wrapping_mul(0x100_0000_01b3).wrapping_add(value ^ i as u64)
    })
}

//! Threads that stand in for processors, and an oracle of the memory that they write.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::Duration;

use cowslip::units::page_size_bytes;
use cowslip_vm::{GuestMemory, RamRange, Snapshot};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

/// Long enough for anything that works.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const LOW: u64 = 16 << 20;
pub const HIGH: u64 = 8 << 20;
pub const REGIONS: [(GuestAddress, u64); 2] =
    [(GuestAddress(0), LOW), (GuestAddress(4 << 30), HIGH)];

/// Reports that a test could not be done; `COWSLIP_EXPECT` makes that a failure.
pub fn skip(capability: &str, why: &str) {
    let declared = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
    assert!(!declared.split(',').any(|word| word == capability), "{capability} is expected: {why}");
    println!("SKIPPED: {capability}: {why}");
}

static PAGE_BYTES: LazyLock<usize> = LazyLock::new(page_size_bytes);
const PROCESSORS: usize = 4;
/// Pages before the first slot: the number of all writes that were begun, then each processor's number of writes.
const HEAD: usize = 1 + PROCESSORS;

/// The pages of a guest, in order.
fn page(number: usize) -> GuestAddress {
    let at = (number * *PAGE_BYTES) as u64;
    GuestAddress(if at < LOW { at } else { (4 << 30) + at - LOW })
}

fn pages() -> usize {
    (LOW + HIGH) as usize / *PAGE_BYTES
}

/// Slots of each processor: one word on a page of its own.
fn slots() -> usize {
    (pages() - HEAD) / PROCESSORS
}

fn slot(processor: usize, write: u64) -> GuestAddress {
    page(HEAD + processor + PROCESSORS * (write as usize % slots()))
}

/// A word of guest memory, to be used as the guest's processors do.
#[allow(unsafe_code)]
fn word(memory: &GuestMemory, at: GuestAddress) -> &AtomicU64 {
    let place = memory.get_host_address(at).expect("in a region");
    // SAFETY: aligned, mapped while `memory` lives, and all access from the tests is by atomics or by copies.
    unsafe { AtomicU64::from_ptr(place.cast()) }
}

/// Number of writes that the guest has begun.
pub fn begun(memory: &GuestMemory) -> u64 {
    word(memory, page(0)).load(SeqCst)
}

/// Checks that memory is that of one instant, and returns the number of writes in it. A processor counts a write as
/// begun, stores its number in the next slot, and then counts it as done.
pub fn check(read: impl Fn(GuestAddress) -> u64) -> u64 {
    let mut all = 0;
    for processor in 0..PROCESSORS {
        let done = read(page(1 + processor));
        let stored = read(slot(processor, done + 1)) == done + 1;
        let newest = done + u64::from(stored);
        let n = slots() as u64;
        for k in 0..n {
            let write = newest - (newest + n - k) % n;
            let wanted = if newest >= (newest + n - k) % n { write } else { 0 };
            let at = slot(processor, k);
            assert_eq!(read(at), wanted, "processor {processor}, slot {k} of {n}, newest {newest}");
        }
        all += newest;
    }
    let begun = read(page(0));
    assert!((all..=all + PROCESSORS as u64).contains(&begun), "{begun} begun, {all} stored");
    all
}

pub fn check_memory(memory: &GuestMemory) -> u64 {
    check(|at| word(memory, at).load(Relaxed))
}

pub fn check_snapshot(snapshot: &Snapshot) -> u64 {
    check(|at| {
        let mut bytes = [0; 8];
        snapshot.read(&mut bytes, at).expect("in a region");
        u64::from_ne_bytes(bytes)
    })
}

/// All bytes of a guest's memory.
pub fn content(memory: &GuestMemory) -> Vec<u8> {
    use vm_memory::Bytes;
    let mut all = Vec::new();
    for region in memory.iter() {
        let mut bytes = vec![0; region.len() as usize];
        memory.read_slice(&mut bytes, region.start_addr()).expect("in a region");
        all.append(&mut bytes);
    }
    all
}

pub fn content_of(snapshot: &Snapshot) -> Vec<u8> {
    let region = |RamRange { guest, host }: &RamRange| {
        let mut bytes = vec![0; host.len];
        snapshot.read(&mut bytes, *guest).expect("in a region");
        bytes
    };
    snapshot.regions().iter().flat_map(region).collect()
}

/// Processors that write until they are stopped.
pub struct Processors {
    memory: GuestMemory,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Processors {
    /// Continues from the memory's state. An unfinished write is counted first: no registers are kept that would finish
    /// it.
    pub fn start(memory: GuestMemory) -> Self {
        let all = check_memory(&memory);
        word(&memory, page(0)).store(all, SeqCst);
        let stop = Arc::new(AtomicBool::new(false));
        let start = |processor: usize| {
            let (memory, stop) = (memory.clone(), Arc::clone(&stop));
            let done = word(&memory, page(1 + processor)).load(Relaxed);
            let next = word(&memory, slot(processor, done + 1)).load(Relaxed);
            let mut write = done.max(next);
            std::thread::spawn(move || {
                word(&memory, page(1 + processor)).store(write, SeqCst);
                while !stop.load(Relaxed) {
                    write += 1;
                    word(&memory, page(0)).fetch_add(1, SeqCst);
                    word(&memory, slot(processor, write)).store(write, SeqCst);
                    word(&memory, page(1 + processor)).store(write, SeqCst);
                }
            })
        };
        let threads = (0..PROCESSORS).map(start).collect();
        Self { memory, stop, threads }
    }

    /// Waits until the guest has written so much more.
    pub fn wait(&self, writes: u64) {
        let until = begun(&self.memory) + writes;
        while begun(&self.memory) < until {
            assert!(!self.threads.iter().any(JoinHandle::is_finished), "a processor ended");
            std::thread::yield_now();
        }
    }

    /// Stops them; returns the number of writes, all of which must be in memory.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().expect("a processor");
        }
        let all = check_memory(&self.memory);
        assert_eq!(all, begun(&self.memory), "stores were lost");
        all
    }
}

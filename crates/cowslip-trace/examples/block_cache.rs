//! A data cache modelled on a storage system that page faults slowed down in a release: it maps 2 MiB at a
//! time and uses them in blocks of 4 KiB, from the top down.
//!
//! ```text
//! cargo run --release -p cowslip-trace --example block_cache -- --seconds 5
//! cargo run --release -p cowslip-trace --example block_cache -- --order ascending --ops 1000000
//! ```
//!
//! Reads are random. A missing block takes the next slot, is copied from the device and hashed; a cached one
//! is hashed again and must be the same. A full cache drops its oldest map. Only the order of the slots
//! differs between the two orders, and with transparent huge pages only the number of faults.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use memmap2::{Advice, MmapMut};
use twox_hash::XxHash3_128;

const MAP_BYTES: usize = 2 << 20;
const BLOCK_BYTES: usize = 4 << 10;
const SLOTS: usize = MAP_BYTES / BLOCK_BYTES;
/// Blocks are copied from anywhere in it: they need not differ from each other.
const DEVICE_BYTES: usize = 16 << 20;
/// Reads between two looks at the clock.
const OPS_A_LOOK: u64 = 1024;

#[derive(Parser)]
struct Args {
    /// The slot of a map to use next
    #[arg(long, value_enum, default_value_t = Order::Descending)]
    order: Order,
    /// Size of the cache, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(4..))]
    size: u64,
    /// End after this many seconds
    #[arg(long, default_value_t = 5.0, conflicts_with = "ops")]
    seconds: f64,
    /// End after this many reads
    #[arg(long)]
    ops: Option<u64>,
    /// Ask for huge pages, as the setting `madvise` of THP requires
    #[arg(long)]
    madvise: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// From the top down
    Descending,
    Ascending,
}

/// SplitMix64: the same reads each time.
struct Scatter(u64);

impl Scatter {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * bound as u128) >> 64) as usize
    }
}

/// The place of a block, and its hash when it was copied.
#[derive(Clone, Copy)]
struct Place {
    map: u64,
    slot: usize,
    hash: u128,
}

/// A map, and the block in each of the slots used so far.
struct Slab {
    memory: MmapMut,
    blocks: Vec<usize>,
}

struct Cache<'a> {
    args: &'a Args,
    slabs: VecDeque<Slab>,
    /// The number of the oldest slab.
    oldest: u64,
    places: HashMap<usize, Place>,
    device: Vec<u8>,
    hits: u64,
}

impl<'a> Cache<'a> {
    fn new(args: &'a Args) -> Self {
        let mut scatter = Scatter(1);
        let device = (0..DEVICE_BYTES).map(|_| scatter.below(256) as u8).collect();
        let (slabs, places) = (VecDeque::new(), HashMap::new());
        Self { args, slabs, oldest: 0, places, device, hits: 0 }
    }

    /// Size of the cache, in blocks.
    fn capacity(&self) -> usize {
        (self.args.size << 20) as usize / BLOCK_BYTES
    }

    fn read(&mut self, block: usize) -> io::Result<()> {
        if let Some(&Place { map, slot, hash }) = self.places.get(&block) {
            let slab = &self.slabs[(map - self.oldest) as usize];
            let is_same = XxHash3_128::oneshot(&slab.memory[bytes(slot)]) == hash;
            self.hits += 1;
            return if is_same { Ok(()) } else { Err(io::Error::other("a block was lost")) };
        }
        if self.slabs.back().is_none_or(|slab| slab.blocks.len() == SLOTS) {
            self.grow()?;
        }
        let map = self.oldest + self.slabs.len() as u64 - 1;
        let slab = self.slabs.back_mut().expect("it has just grown");
        let slot = match self.args.order {
            Order::Ascending => slab.blocks.len(),
            Order::Descending => SLOTS - 1 - slab.blocks.len(),
        };
        slab.blocks.push(block);
        let from = block * 64 % (DEVICE_BYTES - BLOCK_BYTES);
        let memory = &mut slab.memory[bytes(slot)];
        memory.copy_from_slice(&self.device[from..from + BLOCK_BYTES]);
        let hash = XxHash3_128::oneshot(memory);
        self.places.insert(block, Place { map, slot, hash });
        Ok(())
    }

    /// Maps the next 2 MiB; drops the oldest map if the cache is full.
    fn grow(&mut self) -> io::Result<()> {
        if self.slabs.len() * SLOTS >= self.capacity()
            && let Some(slab) = self.slabs.pop_front()
        {
            for block in slab.blocks {
                self.places.remove(&block);
            }
            self.oldest += 1;
        }
        let memory = MmapMut::map_anon(MAP_BYTES)?;
        if self.args.madvise {
            memory.advise(Advice::HugePage)?;
        }
        self.slabs.push_back(Slab { memory, blocks: Vec::with_capacity(SLOTS) });
        Ok(())
    }
}

fn bytes(slot: usize) -> std::ops::Range<usize> {
    slot * BLOCK_BYTES..(slot + 1) * BLOCK_BYTES
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut cache = Cache::new(&args);
    // Every tenth read finds its block.
    let blocks = cache.capacity() * 10;
    let mut scatter = Scatter(3);
    let limit = args.ops.map_or(Duration::try_from_secs_f64(args.seconds)?, |_| Duration::MAX);
    let began = Instant::now();
    let mut ops = 0;
    while args.ops.is_none_or(|wanted| ops < wanted) {
        cache.read(scatter.below(blocks))?;
        ops += 1;
        if ops % OPS_A_LOOK == 0 && began.elapsed() >= limit {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let maps = cache.oldest + cache.slabs.len() as u64;
    println!(
        "{{\"ops\": {ops}, \"seconds\": {seconds:.6}, \"ops_per_second\": {:.1}, \"hits\": {}, \"maps\": {maps}, \
         \"size_bytes\": {}, \"order\": \"{}\"}}",
        ops as f64 / seconds,
        cache.hits,
        args.size << 20,
        format!("{:?}", args.order).to_lowercase(),
    );
    Ok(())
}

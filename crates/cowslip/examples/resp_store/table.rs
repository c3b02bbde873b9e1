//! A hash table in a heap: keys and values of any length, in chains.
//!
//! It grows by linear hashing, one bucket with each new key, so that no command waits for a rehash of millions.
//! Buckets lie in segments, each as long as all before it:
//!
//! ```text
//!  segment 0: buckets 0..1024   1: 1024..2048   2: 2048..4096   …      bucket ─▶ Entry ─▶ Entry ─▶ 0
//! ```

use std::hash::{BuildHasher, RandomState};

use bytemuck::{Pod, Zeroable};
use cowslip::Result;
use twox_hash::XxHash3_128;

use crate::heap::{FIRST_BLOCK, Full, Heap, class_of};
use crate::memory::Memory;

const FIRST_BUCKETS: u64 = 1024;
const SEGMENTS: usize = 24;
/// The first allocated block is the root.
const ROOT: u64 = FIRST_BLOCK;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Root {
    /// Changing commands that have been executed since the store was made.
    writes: u64,
    /// Checkpoints that have begun.
    generation: u64,
    keys: u64,
    buckets: u64,
    seed: u64,
    segments: [u64; SEGMENTS],
}

/// Followed by the key and the value.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Entry {
    next: u64,
    hash: u64,
    key_bytes: u32,
    value_bytes: u32,
}

const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

impl Entry {
    fn block_bytes(&self) -> u64 {
        ENTRY_BYTES + u64::from(self.key_bytes) + u64::from(self.value_bytes)
    }
}

/// An entry that is allocated and filled, but not yet in the table.
pub(crate) struct Prepared(u64);

pub(crate) struct Table {
    heap: Heap,
}

impl Table {
    pub(crate) fn new(memory: Memory) -> std::result::Result<Self, Full> {
        let mut table = Self { heap: Heap::new(memory) };
        let seed = RandomState::new().hash_one(0); // Nobody can choose keys that collide.
        table.found(Root { seed, ..Root::zeroed() })?;
        Ok(table)
    }

    /// The table that was in this memory.
    pub(crate) fn from_memory(memory: Memory) -> Self {
        Self { heap: Heap::from_memory(memory) }
    }

    /// Puts an empty table at the start of an empty heap.
    fn found(&mut self, counters: Root) -> std::result::Result<(), Full> {
        let root = self.heap.allocate(size_of::<Root>() as u64)?;
        assert_eq!(root, ROOT, "the first block");
        let first = self.heap.allocate(FIRST_BUCKETS * 8)?;
        self.heap.memory.bytes_mut(first, FIRST_BUCKETS * 8).fill(0);
        let mut segments = [0; SEGMENTS];
        segments[0] = first;
        *self.root_mut() = Root { keys: 0, buckets: FIRST_BUCKETS, segments, ..counters };
        Ok(())
    }

    pub(crate) fn clear(&mut self) -> Result<()> {
        let counters = *self.root();
        let cleared = self.heap.clear();
        self.found(counters).expect("it had more than this before");
        cleared
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.heap.memory
    }

    pub(crate) fn memory_mut(&mut self) -> &mut Memory {
        &mut self.heap.memory
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.heap.used_bytes()
    }

    pub(crate) fn keys(&self) -> u64 {
        self.root().keys
    }

    pub(crate) fn writes(&self) -> u64 {
        self.root().writes
    }

    pub(crate) fn count_write(&mut self) {
        self.root_mut().writes += 1;
    }

    /// Numbers the checkpoint that is about to be taken.
    pub(crate) fn begin_generation(&mut self) -> u64 {
        self.root_mut().generation += 1;
        self.root().generation
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let (_, at) = self.find(key)?;
        let entry = self.entry(at);
        let value = at + ENTRY_BYTES + u64::from(entry.key_bytes);
        Some(self.heap.memory.bytes(value, entry.value_bytes.into()))
    }

    /// Sets a value, in place if it fits a block of the old one's class.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), Full> {
        if let Some((_, at)) = self.find(key) {
            let entry = *self.entry(at);
            let value_bytes = u32::try_from(value.len()).map_err(|_| Full)?;
            let changed = Entry { value_bytes, ..entry };
            if class_of(changed.block_bytes()) == class_of(entry.block_bytes()) {
                self.fill(at, changed, key, value);
                return Ok(());
            }
        }
        let prepared = self.prepare(key, value)?;
        self.insert(prepared);
        Ok(())
    }

    /// The part of a change that may fail; it does not change the table yet.
    pub(crate) fn prepare(
        &mut self,
        key: &[u8],
        value: &[u8],
    ) -> std::result::Result<Prepared, Full> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| Full);
        let (key_bytes, value_bytes) = (length(key)?, length(value)?);
        let entry = Entry { next: 0, hash: self.hash(key), key_bytes, value_bytes };
        let at = self.heap.allocate(entry.block_bytes())?;
        self.fill(at, entry, key, value);
        Ok(Prepared(at))
    }

    /// Frees an entry that will not be inserted.
    pub(crate) fn give_up(&mut self, prepared: Prepared) {
        self.heap.free(prepared.0, self.entry(prepared.0).block_bytes());
    }

    /// Replaces the entry with the same key, or adds a new one.
    pub(crate) fn insert(&mut self, Prepared(at): Prepared) {
        let key_bytes = self.entry(at).key_bytes.into();
        let key = self.heap.memory.bytes(at + ENTRY_BYTES, key_bytes);
        if let Some((link, old)) = self.find(key) {
            let old_entry = *self.entry(old);
            self.heap.memory.value_mut::<Entry>(at).next = old_entry.next;
            *self.heap.memory.value_mut(link) = at;
            self.heap.free(old, old_entry.block_bytes());
        } else {
            let bucket = self.bucket(self.bucket_of(self.entry(at).hash));
            self.push(bucket, at);
            self.root_mut().keys += 1;
            self.split();
        }
    }

    /// Removes a key; returns true if there was one.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let Some((link, at)) = self.find(key) else { return false };
        let entry = *self.entry(at);
        *self.heap.memory.value_mut(link) = entry.next;
        self.heap.free(at, entry.block_bytes());
        self.root_mut().keys -= 1;
        true
    }

    fn root(&self) -> &Root {
        self.heap.memory.value(ROOT)
    }

    fn root_mut(&mut self) -> &mut Root {
        self.heap.memory.value_mut(ROOT)
    }

    fn entry(&self, at: u64) -> &Entry {
        self.heap.memory.value(at)
    }

    fn hash(&self, key: &[u8]) -> u64 {
        XxHash3_128::oneshot_with_seed(self.root().seed, key) as u64
    }

    fn fill(&mut self, at: u64, entry: Entry, key: &[u8], value: &[u8]) {
        let block = self.heap.memory.bytes_mut(at, entry.block_bytes());
        let (head, rest) = block.split_at_mut(ENTRY_BYTES as usize);
        head.copy_from_slice(bytemuck::bytes_of(&entry));
        rest[..key.len()].copy_from_slice(key);
        rest[key.len()..].copy_from_slice(value);
    }

    /// The place of the link to the entry of a key, and the entry.
    fn find(&self, key: &[u8]) -> Option<(u64, u64)> {
        let hash = self.hash(key);
        let mut link = self.bucket(self.bucket_of(hash));
        loop {
            let at = *self.heap.memory.value(link);
            if at == 0 {
                return None;
            }
            let entry = self.entry(at);
            if entry.hash == hash
                && self.heap.memory.bytes(at + ENTRY_BYTES, entry.key_bytes.into()) == key
            {
                return Some((link, at));
            }
            link = at; // An entry begins with the offset of the next.
        }
    }

    fn bucket_of(&self, hash: u64) -> u64 {
        let buckets = self.root().buckets;
        let rounded = buckets.next_power_of_two();
        let bucket = hash & (rounded - 1);
        if bucket < buckets { bucket } else { bucket - rounded / 2 }
    }

    /// The place of a bucket.
    fn bucket(&self, bucket: u64) -> u64 {
        let (segment, first) = segment_of(bucket);
        self.root().segments[segment] + (bucket - first) * 8
    }

    fn push(&mut self, bucket: u64, at: u64) {
        let next = *self.heap.memory.value(bucket);
        self.heap.memory.value_mut::<Entry>(at).next = next;
        *self.heap.memory.value_mut(bucket) = at;
    }

    /// Adds a bucket if there are more keys than buckets, and memory for it.
    fn split(&mut self) {
        let Root { keys, buckets: new, segments, .. } = *self.root();
        let (segment, first) = segment_of(new);
        if keys <= new || segment == SEGMENTS {
            return;
        }
        if segments[segment] == 0 {
            let Ok(at) = self.heap.allocate(first * 8) else { return };
            self.root_mut().segments[segment] = at;
        }
        let rounded = (new + 1).next_power_of_two();
        let (from, to) = (self.bucket(new - rounded / 2), self.bucket(new));
        let mut at = std::mem::take(self.heap.memory.value_mut(from));
        *self.heap.memory.value_mut(to) = 0_u64;
        while at != 0 {
            let Entry { next, hash, .. } = *self.entry(at);
            self.push(if hash & (rounded - 1) == new { to } else { from }, at);
            at = next;
        }
        self.root_mut().buckets += 1;
    }
}

/// The segment of a bucket, and the segment's first bucket.
fn segment_of(bucket: u64) -> (usize, u64) {
    match (bucket / FIRST_BUCKETS).checked_ilog2() {
        None => (0, 0),
        Some(doubling) => (doubling as usize + 1, FIRST_BUCKETS << doubling),
    }
}

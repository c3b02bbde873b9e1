//! The store: a hash table of fixed size in one range of memory, and the expected content of its slots.
//!
//! A slot is sixteen words, the key and a value of 120 bytes. Every word of the value follows from the key and the
//! number of the `SET` that stored it. `SET` number `n` has the same key in any store, so that no log is needed.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

pub(crate) const SLOT_WORDS: usize = 16;
pub(crate) const SLOT_BYTES: usize = SLOT_WORDS * 8;

pub(crate) type Slot = [u64; SLOT_WORDS];

/// The content of a slot without a key.
pub(crate) const EMPTY: Slot = [0; SLOT_WORDS];

/// An open-addressing table, at most three quarters full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table<'a>(&'a [AtomicU64]);

impl<'a> Table<'a> {
    /// A table in `words`, which are zero or a table already.
    pub(crate) fn new(words: &'a [AtomicU64]) -> Self {
        assert!(!words.is_empty() && words.len().is_multiple_of(SLOT_WORDS));
        Self(words)
    }

    pub(crate) fn slots(self) -> usize {
        self.0.len() / SLOT_WORDS
    }

    /// The keys are 1 to this.
    pub(crate) fn keys(self) -> u64 {
        (self.slots() * 3 / 4) as u64
    }

    /// The slot of `key`, or the free one for it.
    pub(crate) fn find(self, key: u64) -> usize {
        let mut slot = mix(key) as usize % self.slots();
        loop {
            let found = self.0[slot * SLOT_WORDS].load(Relaxed);
            if found == key || found == 0 {
                return slot;
            }
            slot = (slot + 1) % self.slots();
        }
    }

    /// `SET`: stores the words in order, so that a snapshot can hold the first of them only.
    pub(crate) fn set(self, slot: &Slot) {
        let start = self.find(slot[0]) * SLOT_WORDS;
        for (place, word) in self.0[start..start + SLOT_WORDS].iter().zip(slot) {
            place.store(*word, Release);
        }
    }

    pub(crate) fn get(self, slot: usize) -> Slot {
        std::array::from_fn(|word| self.0[slot * SLOT_WORDS + word].load(Relaxed))
    }
}

/// The key of `SET` number `sequence`.
pub(crate) fn key_of(sequence: u64, keys: u64) -> u64 {
    1 + mix(sequence) % keys
}

/// The content of `SET` number `sequence`; 0 is the first filling. No two have a word of a value in common for the same
/// key.
pub(crate) fn compose(key: u64, sequence: u64) -> Slot {
    let seed = mix(key);
    let value = |word: usize| mix(seed ^ (sequence * SLOT_WORDS as u64 + word as u64));
    std::array::from_fn(|word| if word == 0 { key } else { value(word) })
}

/// The last steps of SplitMix64: a bijection.
fn mix(word: u64) -> u64 {
    let mixed = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

//! The expected value of every word: a function of its place and of the generation that wrote it last, which
//! follows from the seed.

use std::fmt;
use std::ops::Range;

use cowslip::units::CHUNK_BYTES;
use fastrand::Rng;

pub(crate) const CHUNKS: usize = 32;
pub(crate) const CHUNK_WORDS: usize = CHUNK_BYTES / 8;
pub(crate) const PAGE_WORDS: usize = 512;
const CHUNK_PAGES: usize = CHUNK_WORDS / PAGE_WORDS;
pub(crate) const PAGES: usize = CHUNKS * CHUNK_PAGES;
pub(crate) const BYTES: usize = CHUNKS * CHUNK_BYTES;
/// The mark of a page that its last writer zeroed.
const ZEROES: u32 = 1 << 31;

/// Pages that a generation writes.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) pages: Range<usize>,
    is_zeroes: bool,
}

/// The changes of a generation.
pub(crate) fn changes(seed: u64, generation: u32) -> Vec<Change> {
    if generation == 0 {
        return vec![Change { pages: 0..PAGES, is_zeroes: false }];
    }
    let mut rng = Rng::with_seed(seed ^ u64::from(generation).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let change = |rng: &mut Rng| {
        let first = rng.usize(..CHUNKS) * CHUNK_PAGES;
        let pages = match rng.u8(..10) {
            0..5 => {
                let page = first + rng.usize(..CHUNK_PAGES);
                page..page + 1
            }
            5..7 => {
                let from = rng.usize(..CHUNK_PAGES);
                first + from..first + rng.usize(from + 1..=CHUNK_PAGES)
            }
            _ => first..first + CHUNK_PAGES,
        };
        Change { pages, is_zeroes: rng.u8(..8) == 0 }
    };
    (0..rng.usize(1..=6)).map(|_| change(&mut rng)).collect()
}

/// The last generation that wrote each page.
#[derive(Clone)]
pub(crate) struct History {
    seed: u64,
    pub(crate) generation: u32,
    pages: Vec<u32>,
}

/// Words with wrong values.
pub(crate) struct Wrong {
    pub(crate) words: usize,
    first: usize,
    is: u64,
    must_be: u64,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { words, first, is, must_be } = self;
        let chunk = first / CHUNK_WORDS;
        write!(f, "{words} words from {first:#x} (chunk {chunk}): {is:#x}, must be {must_be:#x}")
    }
}

impl History {
    pub(crate) fn at(seed: u64, generation: u32) -> Self {
        let mut history = Self { seed, generation: 0, pages: vec![0; PAGES] };
        while history.generation < generation {
            history.advance();
        }
        history
    }

    /// Advances to the next generation; returns its changes.
    pub(crate) fn advance(&mut self) -> Vec<Change> {
        self.generation += 1;
        let changes = changes(self.seed, self.generation);
        for change in &changes {
            let zeroes = if change.is_zeroes { ZEROES } else { 0 };
            self.pages[change.pages.clone()].fill(self.generation | zeroes);
        }
        changes
    }

    /// Records a write of these pages by a later generation that exists only here.
    pub(crate) fn write(&mut self, pages: Range<usize>, generation: u32) {
        self.pages[pages].fill(generation);
    }

    fn word(&self, i: usize) -> u64 {
        let by = self.pages[i / PAGE_WORDS];
        if by & ZEROES != 0 {
            return 0;
        }
        let place = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let writer = (u64::from(by) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (place ^ writer.rotate_left(31) ^ self.seed) | 1
    }

    /// Writes the expected content of pages.
    pub(crate) fn fill(&self, words: &mut [u64], pages: Range<usize>) {
        let first = pages.start * PAGE_WORDS;
        let there = &mut words[first..pages.end * PAGE_WORDS];
        there.iter_mut().enumerate().for_each(|(i, word)| *word = self.word(first + i));
    }

    /// Checks words that begin at the place `first`.
    pub(crate) fn check(&self, first: usize, words: &[u64]) -> Result<(), Wrong> {
        let wrong = words.iter().enumerate().filter(|(i, word)| **word != self.word(first + i));
        match wrong.clone().next() {
            None => Ok(()),
            Some((i, &is)) => Err(Wrong {
                words: wrong.count(),
                first: first + i,
                is,
                must_be: self.word(first + i),
            }),
        }
    }
}

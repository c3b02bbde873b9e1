//! The chunks that take base pages at a fault, where the file would have huge ones.
//!
//! A huge page at the first touch of sparsely used memory holds 2 MiB for 4 KiB. A program's memory therefore begins on
//! base pages, as it does natively, and becomes huge once it is [dense](crate::memory::density).

use std::ops::Range;

const BITS: usize = u64::BITS as usize;

/// A set of chunks.
#[derive(Debug, Default)]
pub(crate) struct BaseChunks {
    words: Vec<u64>,
    count: usize,
}

impl BaseChunks {
    pub(crate) fn new(chunks: usize) -> Self {
        Self { words: vec![0; chunks.div_ceil(BITS)], count: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn contains(&self, chunk: usize) -> bool {
        self.words.get(chunk / BITS).is_some_and(|word| word & (1 << (chunk % BITS)) != 0)
    }

    pub(crate) fn set(&mut self, chunks: Range<usize>, is_base: bool) {
        for chunk in chunks {
            let word = &mut self.words[chunk / BITS];
            let before = word.count_ones() as usize;
            match is_base {
                true => *word |= 1 << (chunk % BITS),
                false => *word &= !(1 << (chunk % BITS)),
            }
            self.count = self.count - before + word.count_ones() as usize;
        }
    }

    /// The first of the set in `from .. end`.
    pub(crate) fn next(&self, from: usize, end: usize) -> Option<usize> {
        let first = if from >= end || self.contains(from) { from } else { self.run_end(from, end) };
        (first < end).then_some(first)
    }

    /// The end of the run of chunks that are like `first`.
    pub(crate) fn run_end(&self, first: usize, end: usize) -> usize {
        let is_base = self.contains(first);
        let mut at = first + 1;
        while at < end {
            // Whole words at a time.
            let alike = if is_base { u64::MAX } else { 0 };
            if at.is_multiple_of(BITS)
                && self.words.get(at / BITS).is_none_or(|word| *word == alike)
            {
                at += BITS;
            } else if self.contains(at) == is_base {
                at += 1;
            } else {
                break;
            }
        }
        at.min(end)
    }

    /// The number of borders between runs of the set and runs of other chunks.
    pub(crate) fn borders(&self, chunks: Range<usize>) -> usize {
        let mut borders = 0;
        let mut at = chunks.start;
        while at < chunks.end {
            at = self.run_end(at, chunks.end);
            borders += usize::from(at < chunks.end);
        }
        borders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_a_list_of_flags_says() {
        let mut chunks = BaseChunks::new(300);
        let mut model = [false; 300];
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..500 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let start = (x >> 8) as usize % 300;
            let end = start + (x >> 20) as usize % (301 - start);
            let is_base = x >> 63 == 0;
            chunks.set(start..end, is_base);
            model[start..end].fill(is_base);
            assert_eq!(chunks.is_empty(), !model.contains(&true));
            for first in 0..300 {
                assert_eq!(chunks.contains(first), model[first]);
                let alike = model[first..].iter().take_while(|&&flag| flag == model[first]).count();
                assert_eq!(chunks.run_end(first, 300), first + alike);
                let next = (first..300).find(|&chunk| model[chunk]);
                assert_eq!(chunks.next(first, 300), next);
            }
            let borders = model.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert_eq!(chunks.borders(0..300), borders);
        }
    }
}

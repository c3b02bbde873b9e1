//! The freeze since which each chunk has had its content.
//!
//! Freezes to a view are numbered. A chunk's number is that of the first freeze with the content that its base has held
//! ever since; it has none while it is live, or if the base was written for any other reason. A chunk has the same
//! content in two freezes to a view if its number at the later one is not above the number of the earlier one.

use std::collections::VecDeque;

/// Tells one image from all others.
type Identity = [u8; 16];

/// The number of a chunk that has none. Zero: a fork need not copy the page tables of memory that was never written.
const NEVER: u64 = 0;
/// Images that are remembered as possible parents.
const MOST_SAVES: usize = 64;

#[derive(Debug)]
pub(crate) struct Tracking {
    /// True if a thaw keeps chunks that nothing was written to.
    pub(crate) is_on: bool,
    freezes: u64,
    since: Vec<u64>,
    saves: VecDeque<Save>,
}

#[derive(Debug)]
struct Save {
    identity: Identity,
    /// The arena's place in the image.
    place: usize,
    freeze: u64,
}

impl Tracking {
    pub(crate) fn new(chunks: usize) -> Self {
        Self { is_on: false, freezes: 0, since: vec![NEVER; chunks], saves: VecDeque::new() }
    }

    /// Takes a chunk's number away: its base may be written from here on.
    pub(crate) fn forget(&mut self, chunk: usize) {
        if self.since[chunk] != NEVER {
            self.since[chunk] = NEVER;
        }
    }

    /// Numbers a freeze to a view, after which the base of the chunks that `is_frozen` holds their content.
    pub(crate) fn freeze(&mut self, is_frozen: impl Fn(usize) -> bool) -> Known {
        self.freezes += 1;
        if !self.is_on {
            return Known { number: self.freezes, since: Vec::new() };
        }
        let unnumbered = self.since.iter_mut().enumerate().filter(|(_, since)| **since == NEVER);
        for (_, since) in unnumbered.filter(|(chunk, _)| is_frozen(*chunk)) {
            *since = self.freezes;
        }
        Known { number: self.freezes, since: self.since.clone() }
    }

    /// Notes that an image holds the arena's content at a freeze.
    pub(crate) fn remember(&mut self, identity: Identity, place: usize, known: &Known) {
        if self.saves.len() == MOST_SAVES {
            self.saves.pop_front();
        }
        self.saves.push_back(Save { identity, place, freeze: known.number });
    }

    /// The freeze of this arena that an image holds; `None` if the image is another's, or was saved too long ago.
    pub(crate) fn saved(&self, identity: Identity, place: usize) -> Option<u64> {
        let mut saves = self.saves.iter().rev();
        let save = saves.find(|save| save.identity == identity && save.place == place)?;
        Some(save.freeze)
    }
}

/// The state of tracking at a freeze to a view.
#[derive(Debug)]
pub(crate) struct Known {
    number: u64,
    /// Empty: nothing was tracked.
    since: Vec<u64>,
}

impl Known {
    pub(crate) fn is_tracked(&self) -> bool {
        !self.since.is_empty()
    }

    /// True if a chunk has the same content as at an earlier freeze. Nothing is known of later ones.
    pub(crate) fn is_unchanged_since(&self, chunk: usize, freeze: u64) -> bool {
        let is_since = |since: &u64| *since != NEVER && *since <= freeze;
        freeze <= self.number && self.since.get(chunk).is_some_and(is_since)
    }
}

#[cfg(test)]
mod tests {
    use cowslip_sys::pagemap::Scanner;
    use cowslip_sys::units::{VirtRange, page_size_bytes};

    use super::*;

    #[test]
    fn a_chunk_is_unchanged_since_the_first_freeze_that_its_base_has_held_the_content_of() {
        let mut tracking = Tracking::new(3);
        tracking.is_on = true;
        let first = tracking.freeze(|chunk| chunk < 2);
        assert!(first.is_unchanged_since(0, 1) && !first.is_unchanged_since(2, 1));
        assert!(!first.is_unchanged_since(0, 2));
        let second = tracking.freeze(|_| true);
        assert!(second.is_unchanged_since(1, 1) && !second.is_unchanged_since(2, 1));
        tracking.forget(1);
        let third = tracking.freeze(|_| true);
        let known = |chunk| [1, 2, 3].map(|freeze| third.is_unchanged_since(chunk, freeze));
        assert_eq!(known(0), [true; 3]);
        assert_eq!(known(1), [false, false, true]);
        assert_eq!(known(2), [false, true, true]);
    }

    #[test]
    fn a_chunk_that_was_live_at_a_freeze_is_unchanged_since_none() {
        let mut tracking = Tracking::new(2);
        tracking.is_on = true;
        let first = tracking.freeze(|chunk| chunk == 0);
        assert!(first.is_unchanged_since(0, 1) && !first.is_unchanged_since(1, u64::MAX));
    }

    #[test]
    fn what_nothing_was_tracked_of_takes_no_memory() {
        let tracking = Tracking::new(1 << 20);
        let (start, len) = (tracking.since.as_ptr() as usize, tracking.since.len() * 8);
        let whole_pages = VirtRange::new(start, len).inner_aligned(page_size_bytes());
        let scanner = Scanner::new(cowslip_sys::procfs::open_self("pagemap").unwrap());
        assert_eq!(scanner.count_private(whole_pages, u64::MAX >> 1), Ok(0));
    }

    #[test]
    fn an_image_is_of_one_freeze_and_one_place_and_the_oldest_are_forgotten() {
        let mut tracking = Tracking::new(1);
        let identity = |i: u8| [i; 16];
        for i in 0..=MOST_SAVES as u8 {
            let known = tracking.freeze(|_| true);
            tracking.remember(identity(i), 1, &known);
        }
        assert_eq!(tracking.saved(identity(0), 1), None);
        assert_eq!(tracking.saved(identity(1), 1), Some(2));
        assert_eq!(tracking.saved(identity(1), 0), None);
    }
}

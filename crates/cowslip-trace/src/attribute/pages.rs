//! The pages of a process that were touched, according to the events.
//!
//! A bit per page and state, in blocks of 64 pages, only where something happened. A fork shares the earlier
//! state with the child instead of copying it: each process looks through its own changes to it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Longer ranges, of more than 256 GiB of base pages, are not noted when they come at once: a trace may hold
/// any number.
const MOST_PAGES: u64 = 1 << 26;

/// Pages are told apart up to this number: files are shorter.
pub(super) const MOST_PAGE: u64 = 1 << 52;

/// Pages in a block.
const BLOCK: u64 = u64::BITS as u64;

/// The known state of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Page {
    /// Unknown: no event touched it since it was mapped.
    Unseen,
    /// It belongs to the process alone.
    Own,
    /// It was only read: zeroes, or a file's page.
    Clean,
    /// It was given back.
    Discarded,
    /// It belonged to the process or its parent before a fork, and was not touched since.
    OwnBeforeFork,
    /// It was only read before a fork, and was not touched since.
    CleanBeforeFork,
}

/// 64 pages; a page has at most one of the bits `own`, `clean`, `discarded`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Block {
    /// Pages for which this block holds; for others, the block from before the fork does.
    told: u64,
    own: u64,
    clean: u64,
    discarded: u64,
}

/// The pages of a process, by page number.
#[derive(Clone, Default, Debug)]
pub(super) struct Pages {
    since_fork: BTreeMap<u64, Block>,
    before_fork: Arc<BTreeMap<u64, Block>>,
}

impl Block {
    /// In the block that holds the state before a fork, that state is stored like any other.
    fn set(&mut self, bits: u64, page: Page) {
        self.told |= bits;
        self.own &= !bits;
        self.clean &= !bits;
        self.discarded &= !bits;
        match page {
            Page::Own | Page::OwnBeforeFork => self.own |= bits,
            Page::Clean | Page::CleanBeforeFork => self.clean |= bits,
            Page::Discarded => self.discarded |= bits,
            Page::Unseen => {}
        }
    }

    fn page(&self, bit: u64) -> Page {
        match () {
            () if self.own & bit != 0 => Page::Own,
            () if self.clean & bit != 0 => Page::Clean,
            () if self.discarded & bit != 0 => Page::Discarded,
            () => Page::Unseen,
        }
    }

    fn present(&self) -> u64 {
        self.own | self.clean
    }
}

impl Pages {
    pub(super) fn get(&self, page: u64) -> Page {
        let (key, bit) = (page / BLOCK, 1 << (page % BLOCK));
        if let Some(block) = self.since_fork.get(&key).filter(|block| block.told & bit != 0) {
            return block.page(bit);
        }
        match self.before_fork.get(&key).map_or(Page::Unseen, |block| block.page(bit)) {
            Page::Own => Page::OwnBeforeFork,
            Page::Clean => Page::CleanBeforeFork,
            other => other,
        }
    }

    pub(super) fn set(&mut self, pages: Range<u64>, page: Page) {
        if pages.end.saturating_sub(pages.start) > MOST_PAGES {
            return;
        }
        let is_before_fork = matches!(page, Page::OwnBeforeFork | Page::CleanBeforeFork);
        for (key, bits) in blocks(pages) {
            if is_before_fork {
                Arc::make_mut(&mut self.before_fork).entry(key).or_default().set(bits, page);
                if let Some(block) = self.since_fork.get_mut(&key) {
                    block.set(bits, Page::Unseen);
                    block.told &= !bits;
                }
            } else {
                self.since_fork.entry(key).or_default().set(bits, page);
            }
        }
    }

    /// Marks the present ones of `pages` as given back.
    pub(super) fn discard_present(&mut self, pages: Range<u64>) {
        for key in self.keys(&pages) {
            let bits = mask(key, &pages) & self.present_in(key);
            if bits != 0 {
                self.since_fork.entry(key).or_default().set(bits, Page::Discarded);
            }
        }
    }

    /// Forgets pages that were unmapped, or mapped over.
    pub(super) fn forget(&mut self, pages: Range<u64>) {
        for key in self.keys(&pages) {
            let bits = mask(key, &pages);
            let is_older = self.before_fork.contains_key(&key);
            let block = self.since_fork.entry(key).or_default();
            block.set(bits, Page::Unseen);
            if !is_older {
                block.told &= !bits;
                if block.told == 0 {
                    self.since_fork.remove(&key);
                }
            }
        }
    }

    /// Moves the states of pages with them.
    pub(super) fn relocate(&mut self, from: Range<u64>, to: u64) {
        let moved: Vec<_> = self
            .keys(&from)
            .into_iter()
            .flat_map(|key| {
                let first = (key * BLOCK).max(from.start);
                first..((key + 1) * BLOCK).min(from.end)
            })
            .map(|page| (page - from.start + to, self.get(page)))
            .filter(|(_, page)| *page != Page::Unseen)
            .collect();
        self.forget(from.clone());
        self.forget(to..to + (from.end - from.start));
        for (page, state) in moved {
            self.set(page..page + 1, state);
        }
    }

    /// The number of present pages, whether touched before or after a fork.
    pub(super) fn count_present(&self, pages: Range<u64>) -> u32 {
        let present = |key: u64| (self.present_in(key) & mask(key, &pages)).count_ones();
        (pages.start / BLOCK..pages.end.div_ceil(BLOCK)).map(present).sum()
    }

    /// Forks the process: its state is now shared with the returned child.
    pub(super) fn fork(&mut self) -> Self {
        if !self.since_fork.is_empty() {
            let older = Arc::make_mut(&mut self.before_fork);
            for (key, newer) in std::mem::take(&mut self.since_fork) {
                let block = older.entry(key).or_default();
                for page in [Page::Own, Page::Clean, Page::Discarded, Page::Unseen] {
                    let bits = match page {
                        Page::Own => newer.own,
                        Page::Clean => newer.clean,
                        Page::Discarded => newer.discarded,
                        _ => newer.told & !(newer.own | newer.clean | newer.discarded),
                    };
                    block.set(bits, page);
                }
                if block.present() | block.discarded == 0 {
                    older.remove(&key);
                }
            }
        }
        self.clone()
    }

    fn present_in(&self, key: u64) -> u64 {
        let newer = self.since_fork.get(&key).copied().unwrap_or_default();
        let older = self.before_fork.get(&key).map_or(0, Block::present);
        newer.present() | (older & !newer.told)
    }

    /// The first page of each group of `size` pages (a multiple of 64) that overlaps `pages` and has a block.
    pub(super) fn touched(&self, pages: &Range<u64>, size: u64) -> Vec<u64> {
        let mut firsts: Vec<_> =
            self.keys(pages).into_iter().map(|key| key * BLOCK / size * size).collect();
        firsts.dedup();
        firsts
    }

    /// The blocks that overlap `pages`.
    fn keys(&self, pages: &Range<u64>) -> Vec<u64> {
        if pages.is_empty() {
            return Vec::new();
        }
        let keys = pages.start / BLOCK..pages.end.div_ceil(BLOCK);
        let newer = self.since_fork.range(keys.clone());
        let older = self.before_fork.range(keys);
        let mut keys: Vec<_> = newer.chain(older).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// The bits of `pages` in a block.
fn mask(key: u64, pages: &Range<u64>) -> u64 {
    let first = pages.start.saturating_sub(key * BLOCK).min(BLOCK);
    let end = pages.end.saturating_sub(key * BLOCK).min(BLOCK);
    let below = |n: u64| if n == BLOCK { u64::MAX } else { (1 << n) - 1 };
    below(end) & !below(first)
}

fn blocks(pages: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    (pages.start / BLOCK..pages.end.div_ceil(BLOCK)).map(move |key| (key, mask(key, &pages)))
}

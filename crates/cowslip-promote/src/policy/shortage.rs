//! A shortage of huge pages: the kernel has found none for a promotion.
//!
//! It is the whole machine's. All targets wait for the same time, which doubles with each refusal, so that a shortage
//! costs few requests however many targets there are. Meanwhile only those huge pages are asked for that are there by
//! all appearance: free since the refusal, or split for this purpose.

use super::backoff::Backoff;
use crate::model::Settings;

#[derive(Clone, Debug, Default)]
pub(super) struct Shortage {
    /// True since a promotion found no huge page, until one finds one by itself.
    is_known: bool,
    backoff: Backoff,
    /// Free huge pages by the last look.
    free: u64,
    /// The fewest free huge pages since the refusal: the kernel does not give those.
    useless: u64,
    /// Promotions that may be tried during the wait.
    credit: u64,
}

impl Shortage {
    /// Takes in the free huge pages of a look.
    pub(super) fn see(&mut self, free: u64) {
        self.free = free;
        self.useless = self.useless.min(free);
        self.credit = free - self.useless;
    }

    /// True while huge pages are scarce.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    pub(super) fn is_waiting(&self, now_ns: u64) -> bool {
        self.is_known && self.credit == 0 && self.backoff.is_waiting(now_ns)
    }

    pub(super) fn until_ns(&self) -> u64 {
        if self.is_known && self.credit == 0 { self.backoff.until_ns() } else { 0 }
    }

    /// The huge pages that are there by all appearance, or that the kernel may make.
    pub(super) fn huge_pages(&self, compactions: u64) -> u64 {
        if self.is_known { self.credit } else { self.free.max(compactions) }
    }

    /// The huge pages that the kernel may be asked for in a shortage, if no target gives one.
    pub(super) fn probes(&self, now_ns: u64, compactions: u64) -> u64 {
        if self.is_known && !self.backoff.is_waiting(now_ns) { compactions } else { 0 }
    }

    /// Takes in that so many huge pages are to be split before as many promotions.
    pub(super) fn expect(&mut self, pages: u64) {
        self.credit += pages;
    }

    /// Takes in that a promotion found a huge page. One that was free already, or that the kernel made by itself, ends
    /// the shortage.
    pub(super) fn found(&mut self) {
        match self.credit.checked_sub(1) {
            Some(left) => self.credit = left,
            None => *self = Self { free: self.free, ..Self::default() },
        }
    }

    /// Takes in that a promotion found none.
    pub(super) fn refused(&mut self, now_ns: u64, settings: &Settings) {
        (self.is_known, self.credit, self.useless) = (true, 0, self.free);
        self.backoff.grow(now_ns, settings);
    }
}

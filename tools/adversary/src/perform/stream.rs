//! Streams: memory that a thread writes while other threads of its process fork.
//!
//! A stream writes its pages in turn, each word of number `s` to page `s % pages`. A child may find any
//! number from the last one known before the fork to the one about to be written; the numbers found do not
//! change. Under Cowslip the cut is causal too: with `s` the last number in the child, every other page holds
//! its own last number before `s`.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Me, SKIP};
use crate::model::{Prot, Region};
use crate::program::Call;
use crate::shared::shared;
use crate::sys;
use crate::words::{self, Content, PAGE};

/// A stream of this process, which exists until the process ends.
struct Entry {
    region: AtomicUsize,
    addr: AtomicUsize,
    pages: AtomicUsize,
    /// Its index in the shared sequences, which hold the number about to be written.
    place: AtomicUsize,
    /// The last completely written number.
    done: AtomicU64,
}

const ENTRIES: usize = 64;
static BOARD: [Entry; ENTRIES] = [const {
    Entry {
        region: AtomicUsize::new(0),
        addr: AtomicUsize::new(0),
        pages: AtomicUsize::new(0),
        place: AtomicUsize::new(0),
        done: AtomicU64::new(0),
    }
}; ENTRIES];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The forking thread's knowledge of a stream.
pub(super) struct Seen {
    region: usize,
    addr: usize,
    pages: usize,
    place: usize,
    done: u64,
}

/// The streams before a fork.
pub(super) fn before_fork() -> Vec<Seen> {
    let board = BOARD.iter().filter(|entry| entry.addr.load(Ordering::Acquire) != 0);
    let seen = board.map(|entry| Seen {
        region: entry.region.load(Ordering::Relaxed),
        addr: entry.addr.load(Ordering::Relaxed),
        pages: entry.pages.load(Ordering::Relaxed),
        place: entry.place.load(Ordering::Relaxed),
        done: entry.done.load(Ordering::Acquire),
    });
    seen.collect()
}

/// The last number up to `sequence` that belongs to the page; 0 stands for the initial content.
fn last_of(page: u64, pages: u64, sequence: u64) -> u64 {
    let back = (sequence + pages - page) % pages;
    sequence.saturating_sub(back)
}

fn content(sequence: u64) -> Content {
    if sequence == 0 { Content::Zero } else { Content::Seed(words::stream_seed(sequence)) }
}

impl Me {
    pub(super) fn stream(&mut self, call: &Call) -> Option<()> {
        let (id, pages) = (call.number(0), call.number(1).max(1));
        let entry = BOARD.get(NEXT.fetch_add(1, Ordering::Relaxed))?;
        let Some(place) = shared().new_stream().filter(|_| self.region(id).is_none()) else {
            return SKIP;
        };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let addr = sys::mmap(0, pages * PAGE, prot, 0);
        let addr = addr.unwrap_or_else(|errno| self.fail(&format!("mmap: errno {errno}")));
        entry.region.store(id, Ordering::Relaxed);
        entry.pages.store(pages, Ordering::Relaxed);
        entry.place.store(place, Ordering::Relaxed);
        entry.addr.store(addr, Ordering::Release);
        let until = Instant::now() + Duration::from_millis(call.number(2) as u64);
        let mut sequence = 0;
        while sequence < pages as u64 || Instant::now() < until {
            sequence += 1;
            shared().sequences[place].store(sequence, Ordering::SeqCst);
            let page = sequence as usize % pages;
            words::write(addr + page * PAGE, words::stream_seed(sequence));
            entry.done.store(sequence, Ordering::Release);
        }
        self.verify(&ended(id, addr, pages, sequence))
    }
}

/// The content of a stream after this number.
fn ended(id: usize, addr: usize, pages: usize, sequence: u64) -> Region {
    let mut region = Region::new(id, addr, pages, Content::Zero, Prot::Write);
    for (index, page) in region.pages.iter_mut().enumerate() {
        page.content = content(last_of(index as u64, pages as u64, sequence));
    }
    region
}

/// In a child: its copies of the parent's streams are its own memory from now on.
pub(super) fn inherit(me: &mut Me, parent: usize, streams: &[Seen]) {
    for entry in &BOARD {
        entry.addr.store(0, Ordering::Relaxed);
        entry.done.store(0, Ordering::Relaxed);
    }
    NEXT.store(0, Ordering::Relaxed);
    for seen in streams {
        let region = found(me, parent, seen);
        me.regions.push(region);
    }
}

fn found(me: &Me, parent: usize, seen: &Seen) -> Region {
    let most = shared().sequences[seen.place].load(Ordering::SeqCst);
    let pages = seen.pages as u64;
    let mut region = Region::new(seen.region, seen.addr, seen.pages, Content::Zero, Prot::Write);
    let mut newest = 0;
    let mut held = Vec::new();
    for index in 0..pages {
        let words = words::read(region.at(index as usize));
        let numbers =
            words.iter().map(|&word| if word == 0 { Some(0) } else { words::sequence(word) });
        let least = last_of(index, pages, seen.done);
        let fits = |number: u64| {
            number >= least && number <= most && (number == 0 || number % pages == index)
        };
        let bad = numbers.clone().position(|number| !number.is_some_and(fits));
        if let Some(at) = bad {
            let held = words::wrong(&words, content(least)).unwrap_or_default();
            me.fail(&format!(
                "stream {} page {index} at the fork, word {at} {:#x}: {held}, at most {most}",
                seen.region, words[at]
            ));
        }
        let first = numbers.clone().next().flatten().unwrap_or(0);
        let is_one = words::wrong(&words, content(first)).is_none();
        let page = &mut region.pages[index as usize];
        page.content = if is_one { content(first) } else { Content::Sum(words::sum(&words)) };
        newest = newest.max(first);
        held.push((first, is_one));
    }
    if me.setting.is_causal && parent == 0 {
        for (index, (number, is_one)) in held.into_iter().enumerate() {
            let right = last_of(index as u64, pages, newest);
            if number != right || (!is_one && number != newest) {
                me.fail(&format!(
                    "stream {}: {newest} is there and page {index} holds {number} instead of {right}: \
                     the cut is not causal",
                    seen.region
                ));
            }
        }
    }
    region
}

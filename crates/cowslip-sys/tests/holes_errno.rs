//! Failing searches for holes, and searches that are not made.
#![allow(unsafe_code)]

mod support;

use std::sync::Mutex;

use cowslip_sys::failpoints::{Op, fail};
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::memory::Sharing;
use cowslip_sys::units::page_size_bytes;
use cowslip_sys::{AsFd, Errno, cache};
use support::{Mapped, skip};

/// Failpoints apply to the whole process.
static TURN: Mutex<()> = Mutex::new(());

fn finds_holes_without_searching_beyond(is_found_by_cachestat: bool) {
    let page = page_size_bytes() as u64;
    let mapped = Mapped::new(8, Sharing::Shared);
    let file = mapped.file.as_fd();
    memfile::punch_hole(file, 5 * page, page).unwrap();
    let refused = fail(Op::SeekHole, 0, 1, Errno::IO);
    assert_eq!(memfile::next_data(file, 0, 5 * page), Ok(Some((0, 5 * page))));
    assert_eq!(memfile::next_data(file, 5 * page, 8 * page), Ok(Some((6 * page, 8 * page))));
    assert!(!refused.is_spent(), "there was no hole to be found");
    if is_found_by_cachestat {
        assert_eq!(memfile::next_data(file, 0, 6 * page), Err(Errno::IO), "a search that ends");
    }
    assert_eq!(memfile::next_data(file, 0, 6 * page), Ok(Some((0, 5 * page))));
    assert_eq!(refused.is_spent(), is_found_by_cachestat);
}

/// Such a search would look through all that follows: in a large file, for each of its chunks.
#[test]
fn no_hole_is_searched_for_beyond_what_was_asked_about() {
    let _turn = TURN.lock().unwrap();
    let mapped = Mapped::new(1, Sharing::Shared);
    if cache::cached(mapped.file.as_fd(), 0, page_size_bytes() as u64).is_err() {
        return skip("cachestat", "this kernel has no cachestat(2)");
    }
    finds_holes_without_searching_beyond(true);
}

/// The same without cachestat, as before Linux 6.5.
#[test]
fn without_cachestat_no_hole_is_searched_for_at_all() {
    let _turn = TURN.lock().unwrap();
    let _missing = fail(Op::Cachestat, 0, u32::MAX, Errno::NOSYS);
    finds_holes_without_searching_beyond(false);
}

/// More than one window, with pieces of each length and each page's neighbours.
#[test]
fn without_cachestat_data_is_found_as_lseek_finds_it() {
    const PAGES: u64 = 1200;
    let _turn = TURN.lock().unwrap();
    let page = page_size_bytes() as u64;
    let file = memfile::memfd("test", MemfdKind::Shmem, PAGES * page).unwrap();
    let file = file.as_fd();
    let mut at = 3;
    for run in 1.. {
        if at + run > PAGES {
            break;
        }
        memfile::write_zeroes(file, at * page, run * page).unwrap();
        at += run + run % 3 + 1;
    }
    let all = |from: u64, end: u64| {
        let mut found = Vec::new();
        let mut at = from;
        while let Some((start, stop)) = memfile::next_data(file, at, end).unwrap() {
            found.push((start, stop));
            at = stop;
        }
        found
    };
    let ranges = [(0, PAGES), (5, 700), (511, 513), (0, 3), (600, PAGES + 9)];
    let ranges = ranges.map(|(from, end)| (from * page, end * page + 7));
    let searched = ranges.map(|(from, end)| all(from, end));
    let _missing = fail(Op::Cachestat, 0, u32::MAX, Errno::NOSYS);
    let refused = fail(Op::SeekHole, 0, 1, Errno::IO);
    assert_eq!(ranges.map(|(from, end)| all(from, end)), searched);
    assert!(!refused.is_spent());
}

#[test]
fn without_cachestat_memory_is_counted_as_cachestat_counts_it() {
    const PAGES: u64 = 1030;
    let _turn = TURN.lock().unwrap();
    let page = page_size_bytes() as u64;
    let file = memfile::memfd("test", MemfdKind::Shmem, PAGES * page).unwrap();
    let file = file.as_fd();
    for at in (3..PAGES).step_by(7) {
        memfile::write_zeroes(file, at * page, 2 * page).unwrap();
    }
    let ranges = [(0, PAGES), (5, 700), (511, 513), (0, 3), (600, PAGES)];
    let held = |(from, end): (u64, u64)| {
        let held = memfile::held(file, from * page, (end - from) * page).unwrap();
        (held.bytes, held.evicted_bytes)
    };
    let _missing = fail(Op::Cachestat, 0, u32::MAX, Errno::NOSYS);
    let is_written = |at: &u64| at % 7 == 3 || at % 7 == 4 && *at > 3;
    let expected =
        |(from, end): (u64, u64)| ((from..end).filter(is_written).count() as u64 * page, 0);
    assert_eq!(ranges.map(held), ranges.map(expected));
}

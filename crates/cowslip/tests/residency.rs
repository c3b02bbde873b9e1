//! A process's memory still shows as its own after a freeze and a thaw: resident, and not private to a child.
#![allow(unsafe_code)]

mod support;

use std::sync::atomic::Ordering::Relaxed;

use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};
use cowslip::{Arena, Pages, freeze_all};
use support::children::{kill, wait_for_ever};
use support::{Counters, PATIENCE, Watchdog, eventually, fork_child, skip, smaps_bytes, status_of};

const BYTES: ByteCount = ByteCount::mib(32);
/// Pages of each of a few chunks that are written. Together they are more than the 64 by which the kernel's count of a
/// process' pages may lag. In each chunk they are too few for it to be moved, and for a run of writes that the chunks
/// ahead are moved for.
const WRITTEN_PAGES: usize = 24;

/// An arena in which all memory was written.
fn written() -> Option<(Arena, Counters)> {
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    if !arena.raw().start_service() {
        skip("userfaultfd", "no service thread");
        return None;
    }
    let counters = Counters::new(&arena, BYTES);
    (0..counters.len()).for_each(|i| counters.at(i).store(1, Relaxed));
    Some((arena, counters))
}

fn write_some(counters: &Counters, chunks: usize) {
    for chunk in 0..chunks {
        for page in 0..WRITTEN_PAGES {
            counters.at((chunk * CHUNK_BYTES + page * page_size_bytes()) / 8).fetch_add(1, Relaxed);
        }
    }
}

fn resident(counters: &Counters) -> u64 {
    smaps_bytes(counters.slice().range(), "Rss")
}

#[test]
fn memory_is_resident_again_after_a_freeze_and_after_a_thaw() {
    let _watchdog = Watchdog::start("residency");
    let Some((arena, counters)) = written() else { return };
    for _ in 0..3 {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        eventually("all of it is mapped while frozen", || resident(&counters) == BYTES.0);
        // The huge mapping of a written chunk goes away, and its pages are mapped again.
        write_some(&counters, 4);
        eventually("and again after it was written", || resident(&counters) == BYTES.0);
        assert!(frozen.slice(counters.slice()).len() == counters.len());
        drop(frozen);
        assert!(arena.wait_live(PATIENCE));
        eventually("and after the thaw", || resident(&counters) == BYTES.0);
    }
}

/// The sum of `field` over all mappings of a process.
fn of_process(pid: i32, field: &str) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("a child");
    let line = rollup.lines().find(|line| line.starts_with(field)).expect("the field");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().expect("kB") << 10
}

#[test]
fn a_child_that_reads_has_no_more_to_itself_than_was_copied() {
    let _watchdog = Watchdog::start("what a child has to itself");
    let Some((arena, counters)) = written() else { return };
    let (mut said, mut says) = std::io::pipe().unwrap();
    let theirs = counters.clone();
    let child = fork_child(&[&arena], move || {
        use std::io::Write;
        let all = theirs.sum();
        says.write_all(&all.to_ne_bytes()).unwrap();
        wait_for_ever()
    })
    .unwrap();
    let mut sum = [0; 8];
    std::io::Read::read_exact(&mut said, &mut sum).unwrap();
    assert_eq!(u64::from_ne_bytes(sum), counters.len() as u64, "the child has mapped all of it");
    let few = 8 << 20;
    let own = || of_process(child, "Private_Dirty:");
    eventually("nothing was written, and the parent maps it too", || own() < few);
    // Some pages of each chunk are copied, and no more becomes private to the child.
    let chunks = BYTES.0 as usize / CHUNK_BYTES;
    write_some(&counters, chunks);
    let copied = (chunks * WRITTEN_PAGES * page_size_bytes()) as u64;
    eventually("but what was copied", || own() < few + copied);
    kill(child);
    assert_eq!(status_of(child), libc::SIGKILL);
    assert!(arena.wait_live(PATIENCE));
}

#[test]
fn nothing_is_allocated_for_it() {
    let _watchdog = Watchdog::start("holes");
    let arena = Arena::builder(ByteCount::mib(64)).backing(cowslip::Backing::Base).build().unwrap();
    assert_eq!(arena.pages(), Pages::Base);
    if !arena.raw().start_service() {
        return skip("userfaultfd", "no service thread");
    }
    let counters = Counters::new(&arena, BYTES);
    let step = page_size_bytes() / 8;
    // Every other page of a few chunks, and nothing of the others.
    let touched = 4 * CHUNK_BYTES / page_size_bytes() / 2;
    (0..touched).for_each(|page| counters.at(2 * page * step).store(1, Relaxed));
    let bytes = (touched * page_size_bytes()) as u64;
    let views = freeze_all(&[&arena]).unwrap();
    eventually("what is there is mapped", || resident(&counters) == bytes);
    counters.at(0).store(2, Relaxed);
    eventually("and again", || resident(&counters) == bytes);
    drop(views);
    assert!(arena.wait_live(PATIENCE));
    eventually("after the thaw", || resident(&counters) == bytes);
    assert_eq!(counters.sum(), touched as u64 + 1);
}

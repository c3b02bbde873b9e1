#![allow(unsafe_code)]
//! Views: how they show memory allocated later, and their fate in children.

mod support;

use std::io::{Read, Write};
use std::sync::atomic::Ordering::Relaxed;

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, Fork};
use support::children::plain_fork;
use support::{Counters, PATIENCE, Watchdog, Writers, checksum, fork_child, skip, status_of};

#[test]
fn memory_handed_out_after_the_freeze_reads_zeroes_in_the_view() {
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let mut before = arena.slice::<u64>(1000).unwrap();
    before.fill(1);
    let frozen = arena.freeze().unwrap();
    let mut large = arena.slice::<u64>(2 * CHUNK_BYTES / 8).unwrap();
    let mut small = arena.slice::<u64>(3000).unwrap();
    large.fill(2);
    small.fill(3);
    assert!(frozen.slice(&large).iter().chain(frozen.slice(&small)).all(|&value| value == 0));
    assert!(frozen.slice(&before).iter().all(|&value| value == 1));
}

#[test]
fn what_is_held_of_a_view_outlives_it_and_holds_nothing_up() {
    let _watchdog = Watchdog::start("a freeze after a copy");
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(8));
    let writers = Writers::start(&counters, 1);
    let mut copies = Vec::new();
    for _ in 0..5 {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        let shown = frozen.slice(counters.slice());
        let (words, first) = (shown.as_ptr_range(), checksum(shown));
        let whole = counters.slice().range();
        // Two adjacent parts, and one apart: all of it except the second chunk and a few bytes.
        let end = VirtRange::new(whole.end() - CHUNK_BYTES, CHUNK_BYTES);
        let parts =
            [end, VirtRange::new(whole.start + 8, 8), VirtRange::new(whole.start, CHUNK_BYTES)];
        let shown = |part: &VirtRange| {
            let from = words.start.addr() + (part.start - whole.start);
            // SAFETY: shown by the view, and kept by its copy; no thread writes to either.
            checksum(unsafe { std::slice::from_raw_parts(from as *const u64, part.len / 8) })
        };
        let before = parts.each_ref().map(shown);
        assert_eq!(first, checksum(frozen.slice(counters.slice())));
        let Ok(copy) = frozen.into_copy(&parts) else { panic!("it is not copied") };
        // Not busy, though all of the copies exist.
        let again = arena.freeze_timeout(PATIENCE).unwrap();
        assert_eq!(parts.each_ref().map(shown), before);
        drop(again);
        copies.push((copy, parts, before, words.start.addr(), whole.start));
    }
    let was_live = arena.wait_live(PATIENCE);
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
    for (_copy, parts, before, from, start) in &copies {
        for (part, before) in parts.iter().zip(before) {
            let at = (from + (part.start - start)) as *const u64;
            // SAFETY: as above.
            let now = checksum(unsafe { std::slice::from_raw_parts(at, part.len / 8) });
            assert_eq!(now, *before);
        }
    }
    if !was_live {
        skip("userfaultfd", "nothing is thawed in the background");
    }
}

#[test]
fn an_empty_arena_can_be_frozen_and_frozen_again_when_it_is_in_use() {
    let _watchdog = Watchdog::start("a freeze of nothing");
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let nothing = arena.freeze().unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(4));
    let writers = Writers::start(&counters, 1);
    let something = arena.freeze().expect("nothing of it is frozen");
    let first = checksum(something.slice(counters.slice()));
    assert!(nothing.slice(counters.slice()).iter().all(|&value| value == 0));
    assert_eq!(first, checksum(something.slice(counters.slice())));
    drop(nothing);
    assert_eq!(first, checksum(something.slice(counters.slice())), "the other view goes on");
    drop(something);
    let was_live = arena.raw().start_service() && arena.wait_live(PATIENCE);
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
    if !was_live {
        skip("userfaultfd", "nothing is thawed in the background");
    }
}

/// A program that forks like a daemon, and ends: its child takes the arena over, while it holds a
/// view of its parent's.
fn parent_of_a_daemon(report: &mut impl Write) -> ! {
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(4));
    (0..counters.len()).for_each(|i| counters.at(i).store(i as u64, Relaxed));
    let view = arena.freeze().unwrap();
    counters.at(7).store(70, Relaxed);
    // SAFETY: the child continues as the program, with the only thread, which made it.
    match unsafe { cowslip::fork(&[&arena]) }.unwrap() {
        Fork::Parent(_) => cowslip_sys::process::exit_now(0),
        Fork::Child => {}
    }
    support::eventually("the parent ends", || arena.raw().adopt().unwrap());
    assert!(!arena.raw().is_reader() && arena.raw().start_service());
    drop(view);
    let right = |value: u64| {
        (0..counters.len())
            .all(|i| counters.at(i).load(Relaxed) == if i == 7 { value } else { i as u64 })
    };
    assert!(right(70));
    let writes_on = |value: u64| {
        assert!(arena.wait_live(PATIENCE), "{:?}", arena.metrics());
        let view = arena.freeze().unwrap();
        let before = counters.at(7).swap(value, Relaxed);
        assert_eq!(view.slice(counters.slice())[7], before);
        assert!(right(value));
    };
    writes_on(71);
    writes_on(72);
    let child = fork_child(&[&arena], || right(72)).unwrap();
    assert_eq!(status_of(child), 0);
    report.write_all(&[1]).unwrap();
    cowslip_sys::process::exit_now(0);
}

#[test]
fn i2_i6_a_child_takes_over_when_its_parent_is_gone() {
    let _watchdog = Watchdog::start("a child that takes over");
    if !Arena::new(ByteCount::mib(2)).unwrap().raw().start_service() {
        skip("userfaultfd", "nothing is thawed in the background");
        return;
    }
    let (mut ours, mut theirs) = std::io::pipe().unwrap();
    match plain_fork() {
        0 => parent_of_a_daemon(&mut theirs),
        program => {
            drop(theirs);
            assert_eq!(status_of(program), 0);
            let mut word = [0];
            ours.read_exact(&mut word).expect("the child came to its end");
        }
    }
}

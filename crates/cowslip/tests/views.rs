#![allow(unsafe_code)]
//! Views: what they show of memory handed out later, and what becomes of them in children.

mod support;

use std::io::{Read, Write};
use std::sync::atomic::Ordering::Relaxed;

use cowslip::units::{ByteCount, CHUNK_BYTES};
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

/// A program that forks, as a daemon does, and ends: its child takes the arena over, with a view of
/// its parent's in its hands.
fn parent_of_a_daemon(report: &mut impl Write) -> ! {
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(4));
    (0..counters.len()).for_each(|i| counters.at(i).store(i as u64, Relaxed));
    let view = arena.freeze().unwrap();
    counters.at(7).store(70, Relaxed);
    // SAFETY: the child goes on as the program, whose only thread made it.
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

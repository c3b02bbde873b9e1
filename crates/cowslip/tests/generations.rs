#![allow(unsafe_code)]
//! Children of different ages: each keeps the memory that it could read, and sees nothing later. Only a process that is
//! left alone with an arena takes it over.

mod support;

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cowslip::Arena;
use cowslip::raw::Departure;
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip_sys::process;
use support::children::plain_fork;
use support::{
    Counters, PATIENCE, Watchdog, alone, fork_child, huge_mapped_bytes, skip, status_of,
};

/// A child that waits for a word, then reports if its memory is unchanged.
struct Old {
    pid: i32,
    go: PipeWriter,
}

impl Old {
    fn fork(arena: &Arena, counters: &Counters, value: u64) -> Self {
        let (wait, go) = std::io::pipe().unwrap();
        let pid = fork_child(&[arena], || {
            hear(&wait);
            holds(counters, value)
        });
        Self { pid: pid.unwrap(), go }
    }

    fn ends_right(self) -> bool {
        tell(&self.go);
        status_of(self.pid) == 0
    }
}

fn tell(mut to: &PipeWriter) {
    to.write_all(&[1]).unwrap();
}

fn hear(mut from: &PipeReader) {
    from.read_exact(&mut [0]).unwrap();
}

fn fill(counters: &Counters, value: u64) {
    (0..counters.len()).for_each(|i| counters.at(i).store(value, Relaxed));
}

fn holds(counters: &Counters, value: u64) -> bool {
    (0..counters.len()).all(|i| counters.at(i).load(Relaxed) == value)
}

fn until(mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn passing_child(arena: &Arena) {
    assert_eq!(status_of(fork_child(&[arena], || true).unwrap()), 0);
}

fn chunks(bytes: ByteCount) -> u64 {
    bytes.0 / CHUNK_BYTES as u64
}

#[test]
fn what_was_frozen_after_an_old_child_is_thawed_while_it_lives() {
    let _alone = alone();
    let _watchdog = Watchdog::start("generations");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    if !arena.raw().start_service() {
        return skip("userfaultfd", "nothing is thawed in the background");
    }
    let (older, younger) = (ByteCount::mib(8), ByteCount::mib(12));
    let counters = Counters::new(&arena, older);
    fill(&counters, 1);
    let old = Old::fork(&arena, &counters, 1);
    fill(&counters, 2);
    let more = Counters::new(&arena, younger);
    fill(&more, 3);
    passing_child(&arena);
    fill(&more, 4);
    let held = |metrics: cowslip::Metrics| metrics.frozen_chunks + metrics.vacated_chunks;
    let is_thawed = until(|| held(arena.metrics()) == chunks(older));
    assert!(is_thawed, "{:?}", arena.metrics());
    assert!(holds(&counters, 2) && holds(&more, 4));
    assert!(old.ends_right());
    assert!(arena.wait_live(PATIENCE));
    assert!(holds(&counters, 2) && holds(&more, 4));
}

#[test]
fn more_generations_than_can_be_told_apart_are_all_kept() {
    let _alone = alone();
    let _watchdog = Watchdog::start("many generations");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let has_service = arena.raw().start_service();
    let mut generations = Vec::new();
    for value in 1..12 {
        let counters = Counters::new(&arena, ByteCount::mib(2));
        fill(&counters, value);
        let old = Old::fork(&arena, &counters, value);
        fill(&counters, 100 + value);
        generations.push((counters, value, old));
    }
    while !generations.is_empty() {
        // From the middle: neither the oldest nor the youngest first.
        let (counters, value, old) = generations.remove(generations.len() / 2);
        passing_child(&arena);
        assert!(old.ends_right(), "the child of {value}");
        assert!(holds(&counters, 100 + value));
    }
    assert!(!has_service || arena.wait_live(PATIENCE), "{:?}", arena.metrics());
}

/// With and without userfaultfd, and with a child that lives throughout.
#[test]
fn memory_given_back_between_two_forks_is_used_again() {
    let _alone = alone();
    let _watchdog = Watchdog::start("reuse");
    for userfaultfd in [true, false] {
        let capacity = ByteCount::mib(32);
        let arena = Arena::builder(capacity).userfaultfd(userfaultfd).build().unwrap();
        let counters = Counters::new(&arena, ByteCount::mib(4));
        fill(&counters, 1);
        let old = Old::fork(&arena, &counters, 1);
        // Twenty times the size that fits.
        for round in 0..320 {
            let part = Counters::new(&arena, ByteCount::mib(2));
            assert!(holds(&part, 0), "old content in round {round}");
            fill(&part, round + 1);
            passing_child(&arena);
        }
        assert!(old.ends_right(), "userfaultfd: {userfaultfd}");
        assert!(holds(&counters, 1));
    }
}

/// The owner dies, and leaves two children: neither may take over memory that the other one reads.
#[test]
fn only_who_is_left_alone_takes_an_arena_over() {
    let _alone = alone();
    let _watchdog = Watchdog::start("takeover");
    let (result, report) = std::io::pipe().unwrap();
    match plain_fork() {
        0 => owner(&report),
        pid => {
            drop(report);
            status_of(pid);
            let mut said = String::new();
            (&result).read_to_string(&mut said).unwrap();
            assert_eq!(said, "right");
        }
    }
}

/// Ends before its children.
fn owner(report: &PipeWriter) -> ! {
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(8));
    fill(&counters, 1);
    let (wait, go) = std::io::pipe().unwrap();
    let sibling = fork_child(&[&arena], || {
        hear(&wait);
        holds(&counters, 1)
    });
    let owner = process::pid();
    let heir = fork_child(&[&arena], || {
        until(|| process::parent_pid() != owner);
        let was_kept = !arena.raw().adopt().unwrap();
        fill(&counters, 2);
        tell(&go);
        // The sibling ends now, without telling any process.
        let took_over = until(|| arena.raw().adopt().unwrap());
        let thaws = arena.raw().start_service();
        let is_live = !thaws || arena.wait_live(PATIENCE);
        let is_huge = !thaws
            || !arena.pages().is_huge()
            || until(|| {
                holds(&counters, 2) && huge_mapped_bytes(arena.range()) >= ByteCount::mib(8).0
            });
        let more = Counters::new(&arena, ByteCount::mib(4));
        let is_clean = holds(&more, 0);
        passing_child(&arena);
        let said = match (was_kept, took_over, is_live, is_huge, is_clean, holds(&counters, 2)) {
            (true, true, true, true, true, true) => "right".to_owned(),
            wrong => format!("{wrong:?}: {:?}", arena.metrics()),
        };
        (&*report).write_all(said.as_bytes()).is_ok()
    });
    process::exit_now(i32::from(sibling.is_err() || heir.is_err()))
}

#[test]
fn a_pinned_arena_is_copied_for_children_and_stays_where_it_is() {
    let _alone = alone();
    let _watchdog = Watchdog::start("pinned");
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(6));
    fill(&counters, 1);
    arena.raw().pin();
    let old = Old::fork(&arena, &counters, 1);
    fill(&counters, 2);
    assert_eq!(arena.metrics().frozen_chunks, 0);
    let child = fork_child(&[&arena], || {
        let is_right = holds(&counters, 2);
        fill(&counters, 3);
        is_right && holds(&counters, 3)
    });
    assert_eq!(status_of(child.unwrap()), 0);
    assert!(holds(&counters, 2) && old.ends_right());
}

/// A program whose rights change gets another service thread. Its children may still read memory that has left the arena
/// since.
#[test]
fn another_service_thread_keeps_what_a_child_reads_of_memory_that_left() {
    let _alone = alone();
    let _watchdog = Watchdog::start("another service thread");
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(8));
    fill(&counters, 7);
    let old = Old::fork(&arena, &counters, 7);
    arena.raw().close().unwrap();
    // SAFETY: only this thread uses the arena.
    unsafe { arena.raw().detach(counters.slice().range(), Departure::Descriptors) }.unwrap();
    fill(&counters, 8);
    arena.raw().retire();
    if !arena.raw().start_service() {
        return skip("userfaultfd", "no service thread thaws");
    }
    let is_live = arena.wait_live(Duration::from_millis(300));
    assert!(old.ends_right(), "the child's memory is that of the fork");
    assert!(!is_live, "the child read it");
    assert!(arena.wait_live(PATIENCE), "no other reads it");
    assert!(holds(&counters, 8));
}

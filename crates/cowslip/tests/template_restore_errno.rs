#![allow(unsafe_code)]
//! Every system call of an arena made from a template fails once, at each place where it is made. The content is right
//! throughout, and the arena is independent in the end; or there is none, and an error gives the reason. The same holds
//! if the call fails every time from then on, until it works again.

mod support;

use std::time::Duration;

use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, Backing, ErrorKind, Place};
use cowslip_sys::Errno;
use cowslip_sys::failpoints::{Op, fail};
use support::world::explains_itself;
use support::{Counters, PATIENCE, Watchdog, Writers, alone, fork_child, next_call, status_of};

const WORDS: usize = 6 * CHUNK_BYTES / 8;
const START: u64 = 1000;
const ALWAYS: u32 = u32::MAX;
/// Longer than the service thread waits before it tries again.
const A_WHILE: Duration = Duration::from_millis(50);

/// Restores an arena, writes, forks and freezes while a call fails; returns true if there was such
/// a call.
fn restore_while(op: Op, pass: u32, errno: Errno, backing: Backing) -> bool {
    let source = Arena::builder(ByteCount::mib(16)).backing(backing).build().unwrap();
    let mut words = source.slice::<u64>(WORDS).unwrap();
    words.fill(START);
    let template = source.freeze().unwrap().into_template().unwrap();
    let rule = fail(op, pass, 1, errno);
    let arena = template
        .arena_builder(Place::Anywhere)
        .and_then(|builder| template.restore(builder.backing(backing)))
        .inspect_err(explains_itself);
    if let Ok(arena) = arena {
        let range = template.range_in(&arena, words.range());
        let counters = Counters::restored(&arena, range);
        let writers = Writers::start(&counters, 1);
        drop(template);
        let is_start = || {
            (0..WORDS).all(|i| counters.at(i).load(std::sync::atomic::Ordering::Relaxed) >= START)
        };
        if let Ok(pid) = fork_child(&[&arena], is_start).inspect_err(explains_itself) {
            assert_eq!(status_of(pid), 0, "{op:?} {pass}");
        }
        // Memory that the fork froze may have to be thawed first.
        let frozen = arena.freeze();
        let _ = frozen.inspect_err(|error| {
            if error.kind() != ErrorKind::Busy {
                explains_itself(error);
            }
        });
        assert!(arena.wait_live(PATIENCE), "{op:?} {pass}: tried again");
        let written = writers.stop();
        assert_eq!(counters.sum(), START * WORDS as u64 + written, "{op:?} {pass}");
        let has_failed = rule.is_spent();
        drop(rule);
        let view = arena.freeze_timeout(PATIENCE).unwrap();
        assert_eq!(view.slice(counters.slice()).iter().sum::<u64>(), counters.sum());
        assert!(words.iter().all(|&word| word == START));
        return has_failed;
    }
    let has_failed = rule.is_spent();
    drop(rule);
    assert!(has_failed, "{op:?} {pass}");
    let again = template.restore(template.arena_builder(Place::Anywhere).unwrap()).unwrap();
    assert!(again.wait_live(PATIENCE));
    has_failed
}

/// The same with a call that fails for a long time, from call `pass` on.
fn restore_without(op: Op, pass: u32, errno: Errno, backing: Backing) {
    let source = Arena::builder(ByteCount::mib(16)).backing(backing).build().unwrap();
    let mut words = source.slice::<u64>(WORDS).unwrap();
    words.fill(START);
    let template = source.freeze().unwrap().into_template().unwrap();
    let rule = fail(op, pass, ALWAYS, errno);
    let arena = template
        .arena_builder(Place::Anywhere)
        .and_then(|builder| template.restore(builder.backing(backing)))
        .inspect_err(explains_itself);
    let Ok(arena) = arena else {
        drop(rule);
        let again = template.restore(template.arena_builder(Place::Anywhere).unwrap()).unwrap();
        assert!(again.wait_live(PATIENCE));
        return;
    };
    arena.wait_live(Duration::ZERO);
    let counters = Counters::restored(&arena, template.range_in(&arena, words.range()));
    let writers = Writers::start(&counters, 1);
    let is_whole = || {
        let at = |i| counters.at(i).load(std::sync::atomic::Ordering::Relaxed);
        (0..WORDS).all(|i| at(i) >= START)
    };
    for _ in 0..3 {
        match arena.freeze_timeout(A_WHILE) {
            Ok(view) => {
                let sum = || view.slice(counters.slice()).iter().sum::<u64>();
                assert_eq!(sum(), sum(), "{op:?} {pass}: a view does not change");
            }
            Err(error) if error.kind() == ErrorKind::Busy => {}
            Err(error) => explains_itself(&error),
        }
        if let Ok(pid) = fork_child(&[&arena], is_whole).inspect_err(explains_itself) {
            assert_eq!(status_of(pid), 0, "{op:?} {pass}");
        }
        assert!(is_whole(), "{op:?} {pass}");
    }
    drop(rule);
    assert!(arena.wait_live(PATIENCE), "{op:?} {pass}: it works again");
    let written = writers.stop();
    assert_eq!(counters.sum(), START * WORDS as u64 + written, "{op:?} {pass}");
    drop(template);
    let view = arena.freeze_timeout(PATIENCE).unwrap();
    assert_eq!(view.slice(counters.slice()).iter().sum::<u64>(), counters.sum());
    assert!(words.iter().all(|&word| word == START));
}

#[test]
fn a_machine_may_be_out_of_memory_for_long() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a restore where there is no memory");
    for (op, errno) in [
        (Op::Pwrite, Errno::NOSPC),
        (Op::Pwrite, Errno::NOMEM),
        (Op::Fallocate, Errno::NOSPC),
        (Op::Mmap, Errno::NOMEM),
        (Op::Madvise, Errno::NOMEM),
        (Op::UffdRegister, Errno::NOMEM),
        (Op::Mremap, Errno::NOMEM),
        (Op::PagemapScan, Errno::NOMEM),
    ] {
        for backing in [Backing::Thp, Backing::Base] {
            for pass in [0, 1, 3, 6, 12, 24] {
                restore_without(op, pass, errno, backing);
            }
        }
    }
}

fn at_each(op: Op, errnos: &[Errno], at_least: u32) {
    let _alone = alone();
    let _watchdog = Watchdog::start("a restore while calls fail");
    for backing in [Backing::Thp, Backing::Base] {
        let mut pass = 0;
        while restore_while(op, pass, errnos[pass as usize % errnos.len()], backing) {
            // Later calls repeat earlier ones.
            pass = next_call(pass) + pass / 6;
        }
        assert!(pass >= at_least, "{op:?}: {pass} calls of {at_least}");
    }
}

const ERRNOS: [Errno; 3] = [Errno::NOMEM, Errno::AGAIN, Errno::INVAL];

#[test]
fn files_are_made_and_opened() {
    at_each(Op::MemfileOpen, &[Errno::MFILE, Errno::NOMEM], 2);
}

#[test]
fn it_is_mapped() {
    at_each(Op::Mmap, &[Errno::NOMEM], 8);
}

#[test]
fn it_is_copied() {
    at_each(Op::Pwrite, &[Errno::NOSPC, Errno::NOMEM], 6);
}

#[test]
fn advice_is_given() {
    at_each(Op::Madvise, &ERRNOS, 6);
}

#[test]
fn writers_are_held_off() {
    at_each(Op::UffdOpen, &[Errno::PERM, Errno::MFILE], 1);
    at_each(Op::UffdRegister, &ERRNOS, 2);
    at_each(Op::Mremap, &ERRNOS, 2);
    at_each(Op::UffdWake, &ERRNOS, 2);
}

#[test]
fn private_pages_are_looked_for() {
    at_each(Op::PagemapScan, &ERRNOS, 2);
}

#[test]
fn threads_are_started() {
    at_each(Op::ThreadStart, &[Errno::AGAIN], 1);
}

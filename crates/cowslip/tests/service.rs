//! The service thread cannot wait, cannot read, or ends, at each step of freezes, forks and thaws, while threads write.
//! Afterwards nothing is lost, no thread hangs, and the next service thread thaws everything.
//!
//! Failpoints apply to the whole process: one test at a time.

mod support;

use std::time::Duration;

use cowslip::units::ByteCount;
use cowslip::{Arena, ArenaSlice, ErrorKind, FreezeMethod, freeze_all};
use cowslip_sys::failpoints::{Op, fail};
use cowslip_sys::{Errno, process};
use support::world::{World, explains_itself};
use support::{
    Counters, PATIENCE, Watchdog, Writers, alone, errnos_of, eventually, next_call, pattern, skip,
};

const ALWAYS: u32 = u32::MAX;
/// More calls than a round makes; further ones are not tried.
const MOST_CALLS: u32 = 40;

/// Freezes and forks, several times, with any result.
fn disturb(world: &World) {
    for _ in 0..2 {
        match freeze_all(&world.arenas()) {
            // Memory that an earlier freeze left frozen is not thawed, or not yet.
            Err(error) if error.kind() == ErrorKind::Busy => {}
            answer => world.judge(answer),
        }
        let _ = world.fork().inspect_err(explains_itself);
    }
}

/// Makes `times` calls of `op` fail from the first, second, … one on, while threads freeze, fork, thaw and write.
fn at_each_call(op: Op, times: u32, errnos: &[Errno]) {
    let _alone = alone();
    let _watchdog = Watchdog::start("a service thread that cannot go on");
    for &errno in errnos_of(errnos) {
        let mut has_failed = false;
        let mut pass = 0;
        while pass < MOST_CALLS {
            let world = World::new();
            let before = world.first.raw().start_service() && world.second.raw().start_service();
            assert!(before || pass > 0 || errno == Errno::PERM);
            let rule = fail(op, pass, times, errno);
            disturb(&world);
            let is_spent = rule.is_spent();
            drop(rule);
            has_failed |= is_spent || times == ALWAYS;
            // A failed service is replaced, and the new one thaws the memory that stayed frozen.
            for arena in world.arenas() {
                // A thread that is about to end looks like one that runs until it has.
                eventually("a service thaws", || {
                    arena.raw().start_service() && arena.wait_live(Duration::from_secs(1))
                });
            }
            world.check();
            if times < ALWAYS && !is_spent {
                break;
            }
            pass = next_call(pass);
        }
        assert!(has_failed, "{op:?} is called");
    }
}

#[test]
fn i6_waiting_fails() {
    // Once for `poll`, once for `select`; then it sleeps.
    at_each_call(Op::Poll, 1, &[Errno::INVAL, Errno::PERM]);
    at_each_call(Op::Poll, 2, &[Errno::NOMEM]);
}

#[test]
fn i6_waiting_always_fails_and_all_works_as_before() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a service thread that cannot wait");
    let rule = fail(Op::Poll, 0, ALWAYS, Errno::PERM);
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    if !arena.raw().start_service() {
        return skip("userfaultfd", "no service thread");
    }
    let counters = Counters::new(&arena, ByteCount::mib(4));
    let writers = Writers::start(&counters, 2);
    for _ in 0..5 {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        assert_eq!(frozen.method(), FreezeMethod::Userfaultfd, "{:?}", arena.metrics());
        drop(frozen);
    }
    assert!(arena.wait_live(PATIENCE));
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
    // It polls a thousand times a second, and sleeps in between: it must not use all of its processor time.
    let used_ns = || {
        let before_ns = process::cpu_ns();
        std::thread::sleep(Duration::from_millis(300));
        process::cpu_ns() - before_ns
    };
    eventually("it sleeps", || used_ns() < 100_000_000);
    drop(rule);
    drop(arena);
}

#[test]
fn i6_neither_waiting_nor_sleeping_works() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a service thread that can neither wait nor sleep");
    let poll = fail(Op::Poll, 0, ALWAYS, Errno::PERM);
    let nap = fail(Op::Nap, 0, ALWAYS, Errno::PERM);
    let world = World::new();
    disturb(&world);
    for arena in world.arenas() {
        eventually("nobody relies on it", || !arena.raw().has_service());
    }
    disturb(&world);
    drop((poll, nap));
    for arena in world.arenas() {
        eventually("its service starts", || arena.raw().start_service());
    }
    world.check();
}

#[test]
fn i6_reading_fails() {
    // The second call is another one that does the same.
    at_each_call(Op::UffdRead, 1, &[Errno::PERM, Errno::NOMEM, Errno::INVAL]);
    at_each_call(Op::UffdRead, 2, &[Errno::PERM, Errno::NOMEM]);
    at_each_call(Op::UffdRead, 1, &[Errno::BADF]);
}

#[test]
fn i6_reading_fails_from_some_call_on() {
    at_each_call(Op::UffdRead, ALWAYS, &[Errno::PERM]);
}

#[test]
fn i6_a_panic_in_the_service_thread() {
    at_each_call(Op::ServicePanic, 1, &[Errno::PERM]);
}

/// Makes the service thread look for work; there is none while the thaw is paused.
fn ring(arena: &Arena) {
    drop(arena.hold_for_io(arena.range()).unwrap());
}

/// A frozen arena with private copies and a paused thaw; `None` without userfaultfd.
fn paused() -> Option<(Arena, ArenaSlice<u64>)> {
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    if !arena.raw().start_service() {
        skip("userfaultfd", "no service thread");
        return None;
    }
    let mut words = arena.slice::<u64>(1 << 19).unwrap();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
    arena.raw().pause_thaw();
    drop(arena.freeze().unwrap());
    words.iter_mut().step_by(512).for_each(|word| *word ^= 1);
    Some((arena, words))
}

fn panics(arena: &Arena) {
    let rule = fail(Op::ServicePanic, 0, 1, Errno::PERM);
    eventually("the service thread panics", || {
        ring(arena);
        rule.is_spent()
    });
}

fn assert_thawed(arena: &Arena, words: &[u64]) {
    let metrics = arena.metrics();
    assert_eq!((metrics.frozen_chunks, metrics.thaws), (0, 1), "{metrics:?}");
    let expected = |i: usize| pattern(i) ^ u64::from(i.is_multiple_of(512));
    assert!(words.iter().enumerate().all(|(i, word)| *word == expected(i)));
}

#[test]
fn who_waits_for_a_thaw_starts_the_thread_that_does_it() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a thaw without a service thread");
    let Some((arena, words)) = paused() else { return };
    panics(&arena);
    eventually("nobody relies on it", || !arena.raw().has_service());
    arena.raw().resume_thaw();
    assert!(arena.wait_live(PATIENCE), "{:?}", arena.metrics());
    assert!(arena.raw().has_service());
    assert_thawed(&arena, &words);
}

#[test]
fn who_freezes_and_waits_for_a_thaw_starts_the_thread_that_does_it() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a freeze without a service thread");
    let Some((arena, words)) = paused() else { return };
    std::thread::scope(|scope| {
        // The thread panics while it is waited for.
        let freezes = scope.spawn(|| arena.freeze_timeout(PATIENCE));
        panics(&arena);
        arena.raw().resume_thaw();
        let frozen = freezes.join().unwrap().unwrap();
        assert!(*frozen.slice(&words) == *words);
    });
    assert!(arena.wait_live(PATIENCE));
}

#[test]
fn who_cannot_read_has_no_service() {
    let _alone = alone();
    let _watchdog = Watchdog::start("nothing can be read");
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    if !arena.raw().start_service() {
        return skip("userfaultfd", "no service thread");
    }
    let counters = Counters::new(&arena, ByteCount::mib(2));
    let writers = Writers::start(&counters, 1);
    let rule = fail(Op::UffdRead, 0, ALWAYS, Errno::PERM);
    drop(arena.freeze().unwrap());
    // The old one ends once it has tried to read, and a new one could not read either.
    eventually("there is no service thread", || !arena.raw().start_service());
    drop(rule);
    let frozen = arena.freeze_timeout(PATIENCE).unwrap();
    assert_eq!(frozen.method(), FreezeMethod::Userfaultfd);
    drop(frozen);
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
}

//! Memory that is held for I/O: freezes, forks and thaws wait, and continue when it is released.

mod support;

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cowslip::units::{ByteCount, VirtRange};
use cowslip::{Arena, ErrorKind, freeze_all};
use support::{Counters, PATIENCE, Watchdog, Writers, fork_child, status_of};

const A_WHILE: Duration = Duration::from_millis(100);

#[test]
fn a_freeze_is_busy_or_waits() {
    let _watchdog = Watchdog::start("a freeze of memory that is held");
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(2));
    let held = arena.hold_for_io(counters.slice().range()).unwrap();
    assert_eq!(held.range(), counters.slice().range());
    let error = arena.freeze().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("held for direct I/O"), "{error}");
    let began = Instant::now();
    assert_eq!(arena.freeze_timeout(A_WHILE).unwrap_err().kind(), ErrorKind::Busy);
    assert!(began.elapsed() >= A_WHILE);
    std::thread::scope(|scope| {
        let freezer = scope.spawn(|| arena.freeze_timeout(PATIENCE));
        std::thread::sleep(A_WHILE);
        assert!(!freezer.is_finished());
        drop(held);
        assert!(freezer.join().unwrap().is_ok());
    });
}

#[test]
fn a_fork_waits() {
    let _watchdog = Watchdog::start("a fork of memory that is held");
    let [first, second] = [(); 2].map(|()| Arena::new(ByteCount::mib(8)).unwrap());
    let counters = [&first, &second].map(|arena| Counters::new(arena, ByteCount::mib(2)));
    std::thread::scope(|scope| {
        let held = second.hold_for_io(counters[1].slice().range()).unwrap();
        let forker = scope.spawn(|| fork_child(&[&first, &second], || counters[1].sum() == 5));
        std::thread::sleep(A_WHILE);
        assert!(!forker.is_finished());
        // A holder of one arena can still hold memory of the other.
        drop(first.hold_for_io(counters[0].slice().range()).unwrap());
        counters[1].at(7).store(5, Relaxed);
        drop(held);
        assert_eq!(status_of(forker.join().unwrap().unwrap()), 0);
    });
}

#[test]
fn a_thaw_waits() {
    let _watchdog = Watchdog::start("a thaw of memory that is held");
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(4));
    let frozen = arena.freeze().unwrap();
    let held = arena.hold_for_io(counters.slice().range()).unwrap();
    let also = arena.hold_for_io(counters.slice().range()).unwrap();
    counters.at(3).store(9, Relaxed);
    drop(frozen);
    drop(held);
    assert!(!arena.wait_live(A_WHILE));
    assert_eq!(arena.metrics().thawed_chunks, 0);
    drop(also);
    let has_service = arena.raw().start_service();
    assert!(arena.wait_live(PATIENCE) || !has_service);
    assert_eq!(counters.at(3).load(Relaxed), 9);
}

/// A chunk that is kept for tracking would move if memory beside the held one were handed out, or given back.
#[test]
fn memory_beside_what_is_held_stays() {
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    if !arena.track_changes(true) {
        return support::skip("pagemap_scan", "changes cannot be tracked here");
    }
    let [mut buffer, beside] = [(); 2].map(|()| arena.slice::<u64>(8192).unwrap());
    buffer.fill(7);
    drop(arena.freeze().unwrap());
    assert!(arena.wait_live(PATIENCE));
    let kept = || arena.metrics().kept_chunks;
    assert_eq!(kept(), 1);
    let held = arena.hold_for_io(buffer.range()).unwrap();
    let more = arena.slice::<u64>(512).unwrap();
    drop(beside);
    assert_eq!(kept(), 1);
    assert!(more.iter().chain(buffer.iter()).all(|word| [0, 7].contains(word)));
    drop((held, more));
    drop(arena.slice::<u64>(512).unwrap());
}

#[test]
fn a_freeze_gets_its_turn_among_holds_that_follow_each_other() {
    let _watchdog = Watchdog::start("a freeze among many holds");
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(2));
    let writers = Writers::start(&counters, 1);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let held = arena.hold_for_io(counters.slice().range()).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                    drop(held);
                }
            });
        }
        for _ in 0..10 {
            drop(arena.freeze_timeout(PATIENCE));
            let child = fork_child(&[&arena], || true).unwrap();
            assert_eq!(status_of(child), 0);
        }
        is_over.store(true, Relaxed);
    });
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
    assert!(arena.metrics().forks == 10, "{:?}", arena.metrics());
}

#[test]
fn only_memory_of_the_arena_is_held() {
    let [first, second] = [(); 2].map(|()| Arena::new(ByteCount::mib(8)).unwrap());
    let error = first.hold_for_io(second.range()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let beyond = VirtRange::new(first.range().start, first.range().len + 1);
    assert_eq!(first.hold_for_io(beyond).unwrap_err().kind(), ErrorKind::Usage);
    let held = second.hold_for_io(second.range()).unwrap();
    drop(first.freeze().unwrap());
    drop(held);
    freeze_all(&[&second]).unwrap();
}

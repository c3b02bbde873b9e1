//! Each call of a freeze beside an earlier view, and of a roll-back, fails: the earlier view does not change, nothing
//! is lost, and everything works afterwards. Failpoints apply to the whole process.

mod support;

use std::time::Duration;

use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, freeze_all};
use cowslip_sys::Errno;
use cowslip_sys::failpoints::{Op, fail};
use support::world::{World, explains_itself};
use support::{PATIENCE, Watchdog, alone, checksum, eventually, next_call, skip};

const ERRNOS: [Errno; 4] = [Errno::NOMEM, Errno::AGAIN, Errno::INVAL, Errno::PERM];
const OPS: [Op; 11] = [
    Op::Mmap,
    Op::Mremap,
    Op::Mprotect,
    Op::Madvise,
    Op::PagemapScan,
    Op::Pwrite,
    Op::Fallocate,
    Op::UffdRegister,
    Op::UffdUnregister,
    Op::UffdWake,
    Op::MemfileOpen,
];

#[test]
fn a_second_view_is_whole_or_there_is_none_and_the_first_stays_what_it_was() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a second view whose calls fail");
    for op in OPS {
        if !second_view_at_each(op, |_| {}) {
            return skip("userfaultfd", "one view at a time");
        }
    }
}

/// An ordinary user's pagemap does not tell markers of write protection from pages in swap. A thaw then reads them all, also
/// where a file has nothing, and must not wait for itself there.
#[test]
fn a_second_view_is_whole_or_there_is_none_where_markers_are_unknown() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a second view without knowledge of markers");
    let learn_none = |world: &World| {
        for arena in world.arenas() {
            let rule = fail(Op::UffdWriteProtect, 0, 1, Errno::NOMEM);
            if arena.raw().start_service() {
                eventually("it could not learn", || rule.is_spent());
            }
        }
    };
    if !second_view_at_each(Op::Mmap, learn_none) {
        skip("userfaultfd", "one view at a time");
    }
}

/// Takes a second view, while another call of `op` fails each time, until none does. False if there is no service thread.
fn second_view_at_each(op: Op, prepare: impl Fn(&World)) -> bool {
    let mut pass = 0;
    loop {
        let world = World::new();
        prepare(&world);
        if !world.arenas().iter().all(|arena| arena.raw().start_service()) {
            return false;
        }
        let first = freeze_all(&world.arenas()).unwrap();
        let shown = || {
            let sum = |i: usize| checksum(first[i].slice(world.counters[1 - i].slice()));
            (sum(0), sum(1))
        };
        let before = shown();
        world.wait_written();
        let rule = fail(op, pass, 1, ERRNOS[pass as usize % ERRNOS.len()]);
        let second = freeze_all(&world.arenas());
        let has_failed = rule.is_spent();
        drop(rule);
        assert_eq!(shown(), before, "{op:?} {pass}");
        world.judge(second);
        world.wait_written();
        world.judge(freeze_all(&world.arenas()));
        assert_eq!(shown(), before, "{op:?} {pass}");
        drop(first);
        world.check();
        if !has_failed {
            return true;
        }
        pass = next_call(pass);
    }
}

#[test]
fn an_arena_goes_back_as_a_whole_or_stays_as_it_is() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a way back whose calls fail");
    for op in OPS {
        for pass in 0..40 {
            match way_back(op, pass, 1, Duration::ZERO) {
                Some(true) => {}
                Some(false) => break,
                None => return skip("userfaultfd", "one view at a time"),
            }
        }
        // Lasting failures start with the first call: the kernel does not refuse a call that it granted a moment before.
        way_back(op, 0, u32::MAX, Duration::ZERO);
    }
}

/// The work in the background, which failures then leave half-way, differs from moment to moment.
#[test]
fn an_arena_goes_back_after_failures_that_began_at_any_moment() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a way back after failures");
    for i in 0..100 {
        if way_back(Op::Mmap, 0, u32::MAX, Duration::from_micros(i * 1009 % 6000)).is_none() {
            return skip("userfaultfd", "one view at a time");
        }
    }
}

/// Takes an arena with two views back while calls fail, and then without. Returns true if all of the calls have failed;
/// `None` without a service thread.
#[allow(unsafe_code)]
fn way_back(op: Op, pass: u32, times: u32, written_for: Duration) -> Option<bool> {
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    if !arena.raw().start_service() {
        return None;
    }
    let mut words = arena.slice::<u64>(6 * CHUNK_BYTES / 8).unwrap();
    words.fill(1);
    let first = arena.freeze().unwrap();
    words[..CHUNK_BYTES / 4].fill(2);
    let second = arena.freeze().unwrap();
    words[CHUNK_BYTES / 8 + 5..][..CHUNK_BYTES / 2].fill(3);
    words[5] = 3;
    let now = words.to_vec();
    std::thread::sleep(written_for);
    let rule = fail(op, pass, times, ERRNOS[pass as usize % ERRNOS.len()]);
    // SAFETY: only this thread uses the arena.
    let answer = unsafe { arena.roll_back(&first) };
    let has_failed = rule.is_spent();
    drop(rule);
    match answer {
        Ok(()) => assert!(words.iter().all(|&word| word == 1), "{op:?} {pass}"),
        Err(error) => {
            explains_itself(&error);
            assert!(*words == now, "{op:?} {pass}: {error}");
        }
    }
    words[7] = 9;
    assert!(first.slice(&words).iter().all(|&word| word == 1), "{op:?} {pass}");
    let in_second = |i| if i < CHUNK_BYTES / 4 { 2 } else { 1 };
    let is_second = |(i, &word): (usize, &u64)| word == in_second(i);
    assert!(second.slice(&words).iter().enumerate().all(is_second), "{op:?} {pass}");
    // SAFETY: as above.
    unsafe { arena.roll_back(&second) }.unwrap();
    assert!(words.iter().enumerate().all(is_second), "{op:?} {pass}");
    drop((first, second));
    assert!(arena.wait_live(PATIENCE));
    assert!(words.iter().enumerate().all(is_second), "{op:?} {pass}");
    Some(has_failed)
}

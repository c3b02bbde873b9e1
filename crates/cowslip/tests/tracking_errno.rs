//! Like `fault_injection`, for arenas that track their changes: failures while a freeze moves kept
//! chunks.
//!
//! Failpoints apply to the whole process: one test at a time.

mod support;

use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, freeze_all};
use cowslip_sys::Errno;
use cowslip_sys::failpoints::{Op, fail};
use support::world::{World, explains_itself};
use support::{PATIENCE, Watchdog, alone, errnos_of, eventually, skip};

/// An errno for which a freeze gives up, where it can.
const GIVEN_UP: Errno = Errno::NOMEM;
/// An errno after which it continues without userfaultfd.
const DONE_PLAINLY: Errno = Errno::INVAL;

/// Arenas with kept chunks, some of which are being written; `None` if nothing can be tracked here.
fn kept_world() -> Option<World> {
    let world = World::new();
    if !world.arenas().iter().all(|arena| arena.track_changes(true)) {
        world.check();
        skip("pagemap_scan", "changes cannot be tracked here");
        return None;
    }
    drop(freeze_all(&world.arenas()).unwrap());
    for arena in world.arenas() {
        assert!(arena.wait_live(PATIENCE));
    }
    eventually("what is written is live, and only that", || {
        (world.first.metrics().kept_chunks, world.second.metrics().kept_chunks) == (2, 0)
    });
    Some(world)
}

/// Makes the first, second, … call of `op` fail during `act`, until there is no such call.
fn at_each_call(op: Op, at_least: u32, errnos: &[Errno], act: impl Fn(&World)) {
    let _alone = alone();
    let _watchdog = Watchdog::start("a freeze of kept chunks");
    for &errno in errnos_of(errnos) {
        let mut pass = 0;
        loop {
            let Some(world) = kept_world() else { return };
            let rule = fail(op, pass, 1, errno);
            act(&world);
            let has_failed = rule.is_spent();
            drop(rule);
            world.check();
            if !has_failed {
                break;
            }
            pass += 1;
        }
        assert!(pass >= at_least, "{op:?}: {pass} calls of {at_least}");
    }
}

fn freeze_at_each(op: Op, at_least: u32, errnos: &[Errno]) {
    at_each_call(op, at_least, errnos, |world| {
        world.judge(freeze_all(&world.arenas()));
        for arena in world.arenas() {
            // A failed call may have left work to the service thread; a freeze may be busy with it until then.
            assert!(arena.wait_live(PATIENCE));
        }
    });
}

#[test]
fn freeze_registers() {
    freeze_at_each(Op::UffdRegister, 7, &[GIVEN_UP]);
}

#[test]
fn freeze_moves() {
    freeze_at_each(Op::Mremap, 7, &[GIVEN_UP, DONE_PLAINLY]);
}

#[test]
fn freeze_maps() {
    freeze_at_each(Op::Mmap, 8, &[GIVEN_UP]);
}

#[test]
fn freeze_looks() {
    freeze_at_each(Op::PagemapScan, 7, &[GIVEN_UP]);
}

#[test]
fn freeze_wakes() {
    freeze_at_each(Op::UffdWake, 2, &[GIVEN_UP]);
}

#[test]
fn fork_offers_and_maps() {
    for (op, at_least) in [(Op::Madvise, 2), (Op::Mmap, 2), (Op::Mremap, 1)] {
        at_each_call(op, at_least, &[GIVEN_UP], |world| {
            let _ = world.fork().inspect_err(explains_itself);
        });
    }
}

#[test]
fn what_the_service_thread_cannot_make_live_stays_kept_and_is_tried_again() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a look at kept chunks that fails");
    for op in [Op::UffdRegister, Op::Mremap, Op::PagemapScan, Op::Mmap] {
        let arena = Arena::new(ByteCount::mib(16)).unwrap();
        if !arena.track_changes(true) {
            return skip("pagemap_scan", "changes cannot be tracked here");
        }
        let mut bytes = arena.slice::<u8>(4 * CHUNK_BYTES).unwrap();
        bytes.fill(1);
        drop(arena.freeze().unwrap());
        assert!(arena.wait_live(PATIENCE));
        assert_eq!(arena.metrics().kept_chunks, 4);
        let rule = fail(op, 0, 3, Errno::NOMEM);
        bytes[CHUNK_BYTES] = 2;
        eventually("it fails", || arena.metrics().failed_thaw_chunks >= 1);
        bytes[CHUNK_BYTES + 1] = 3;
        eventually("it is tried again", || arena.metrics().kept_chunks == 3);
        assert!(arena.wait_live(PATIENCE));
        drop(rule);
        assert_eq!(bytes[CHUNK_BYTES..CHUNK_BYTES + 3], [2, 3, 1], "{op:?}");
        let view = arena.freeze().unwrap();
        bytes[CHUNK_BYTES] = 4;
        assert_eq!(view.slice(&bytes)[CHUNK_BYTES..CHUNK_BYTES + 3], [2, 3, 1], "{op:?}");
    }
}

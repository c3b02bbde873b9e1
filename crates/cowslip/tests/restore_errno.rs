//! Like `fault_injection`, for restores: threads that cannot be started.
//!
//! Failpoints apply to the whole process: one test at a time.

mod support;

use cowslip::image::{Image, RestoreOptions, Restored, Strategy};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ArenaSlice};
use cowslip_sys::Errno;
use cowslip_sys::failpoints::{Op, fail};
use support::images::{Folder, patterned, proceed, saved, words};
use support::world::explains_itself;
use support::{PATIENCE, Watchdog, alone, skip};

const ALWAYS: u32 = u32::MAX;

fn is_right(restored: &Restored, slice: &ArenaSlice<u64>, arena: &Arena) -> bool {
    words(restored.arena(), slice.range(), arena)[..slice.len()] == slice[..]
}

#[test]
fn without_the_first_thread_there_is_no_arena_and_without_the_others_it_does_their_work() {
    let _alone = alone();
    let _watchdog = Watchdog::start("threads that cannot be started");
    let folder = Folder::new("threads");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let slice = patterned(&arena);
    saved(&arena.freeze().unwrap(), &path);
    assert!(arena.wait_live(PATIENCE));
    let image = Image::open(&path).unwrap();
    let restore = |record: bool| {
        let options = RestoreOptions { record, ..RestoreOptions::default() };
        image.restore(0, &options, &mut proceed)
    };
    if restore(false).unwrap().strategy() != Strategy::Hybrid {
        return skip("userfaultfd", "restores are eager");
    }

    let rule = fail(Op::ThreadStart, 0, ALWAYS, Errno::AGAIN);
    let error = restore(false).unwrap_err();
    drop(rule);
    assert_eq!(error.errno(), Some(Errno::AGAIN.raw_os_error()));
    explains_itself(&error);

    // Fails always, and a few times only.
    for times in [ALWAYS, 3] {
        let rule = fail(Op::ThreadStart, 1, times, Errno::AGAIN);
        let restored = restore(false).unwrap();
        assert!(restored.wait(PATIENCE).unwrap() && is_right(&restored, &slice, &arena));
        assert_eq!(rule.is_spent(), times != ALWAYS);
    }

    let _rule = fail(Op::ThreadStart, 1, ALWAYS, Errno::AGAIN);
    let restored = restore(true).unwrap();
    let word = 5 * CHUNK_BYTES / 8;
    assert_eq!(words(restored.arena(), slice.range(), &arena)[word], slice[word]);
    restored.finish_recording().unwrap();
    assert!(restored.wait(PATIENCE).unwrap() && is_right(&restored, &slice, &arena));
}

#![allow(unsafe_code)]
//! Memory at given places, remapped memory, and memory that leaves the arena while it is in use.

mod support;

use std::sync::atomic::Ordering::Relaxed;

use cowslip::raw::Usage;
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, Prot};
use support::{Counters, PATIENCE, Watchdog, Writers, checksum, fork_child, skip, status_of};

/// Parts of the counters that leave, live and frozen, while threads count: a whole chunk, and parts of chunks.
fn leavers(counters: &Counters) -> [VirtRange; 3] {
    let whole = counters.slice().range();
    let page = page_size_bytes();
    [
        VirtRange::new(whole.start + CHUNK_BYTES, CHUNK_BYTES),
        VirtRange::new(whole.start + 5 * CHUNK_BYTES / 2, 3 * page),
        VirtRange::new(whole.start + 3 * CHUNK_BYTES + page, 2 * CHUNK_BYTES),
    ]
}

#[test]
fn memory_leaves_the_arena_while_threads_write_to_it() {
    let _watchdog = Watchdog::start("leaving");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    if !arena.raw().start_service() {
        return skip("userfaultfd", "nothing holds writers off");
    }
    let (live, frozen) = (ByteCount::mib(16), ByteCount::mib(16));
    let (live, frozen) = (Counters::new(&arena, live), Counters::new(&arena, frozen));
    let writers = [Writers::start(&live, 2), Writers::start(&frozen, 2)];
    for range in leavers(&live) {
        // SAFETY: the service thread runs.
        unsafe { arena.raw().detach(range, cowslip::raw::Departure::Advice) }.unwrap();
    }
    let view = arena.freeze().unwrap();
    let before = checksum(view.slice(frozen.slice()));
    for range in leavers(&frozen) {
        // SAFETY: as above.
        unsafe { arena.raw().detach(range, cowslip::raw::Departure::Advice) }.unwrap();
        let parts = arena.raw().parts(range);
        assert!(parts.iter().all(|(_, usage, _)| *usage == Usage::Detached), "{parts:?}");
    }
    assert_eq!(before, checksum(view.slice(frozen.slice())), "the base stays");
    drop(view);
    assert!(arena.wait_live(PATIENCE));
    // The kernel shares memory that left with a child; the rest is the arena's.
    let child = fork_child(&[&arena], || {
        let sums = (live.sum(), frozen.sum());
        (0..live.len()).step_by(99).for_each(|i| live.at(i).store(1 << 50, Relaxed));
        sums.0 > 0 && sums.1 > 0
    });
    assert_eq!(status_of(child.unwrap()), 0);
    let written = writers.map(Writers::stop);
    assert_eq!([live.sum(), frozen.sum()], written, "no update is lost");
}

/// Linux before 6.5 may pass over a huge page, and protect none of it, while other threads first touch it.
#[test]
fn no_update_is_lost_in_a_chunk_that_leaves_while_it_is_first_used() {
    let _watchdog = Watchdog::start("leaving early");
    for round in 0..60 {
        let arena = Arena::new(ByteCount::mib(8)).unwrap();
        if !arena.raw().start_service() {
            return skip("userfaultfd", "nothing holds writers off");
        }
        let counters = Counters::new(&arena, ByteCount::mib(6));
        let writers = Writers::start(&counters, 2);
        let range = counters.slice().range();
        for chunk in 0..3 {
            let part = VirtRange::new(range.start + chunk * CHUNK_BYTES, CHUNK_BYTES);
            // SAFETY: the service thread runs.
            unsafe { arena.raw().detach(part, cowslip::raw::Departure::Advice) }.unwrap();
        }
        let written = writers.stop();
        assert_eq!(counters.sum(), written, "round {round}");
    }
}

#[test]
fn memory_is_handed_out_where_it_is_asked_for_and_only_if_it_is_free() {
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let page = page_size_bytes();
    let whole = arena.allocate(ByteCount::mib(8), Prot::RW).unwrap();
    let middle = VirtRange::new(whole.start + 3 * page, CHUNK_BYTES);
    assert!(!arena.allocate_at(middle, Prot::RW).unwrap(), "it is in use");
    // SAFETY: it is not used any more.
    unsafe {
        (middle.start as *mut u8).write_bytes(7, middle.len);
        arena.release(middle).unwrap();
    }
    assert!(arena.allocate_at(middle, Prot::RW).unwrap());
    // SAFETY: it was allocated.
    let content = unsafe { std::slice::from_raw_parts(middle.start as *const u8, middle.len) };
    assert!(content.iter().all(|&byte| byte == 0), "old content of free space");
    // SAFETY: it is not used any more.
    unsafe { arena.raw().unmap(whole) }.unwrap();
    let taken = VirtRange::new(middle.start + 9 * page, page);
    cowslip_sys::memory::reserve_at(taken).unwrap();
    assert!(!arena.allocate_at(whole, Prot::RW).unwrap(), "a part of it is taken");
    let parts = arena.raw().parts(whole);
    let is_unmapped = |usage| matches!(usage, Usage::Hole | Usage::Foreign);
    assert!(parts.iter().all(|(_, usage, _)| is_unmapped(*usage)), "{parts:?}");
    let beyond = VirtRange::new(arena.range().end() - page, 2 * page);
    assert!(!arena.allocate_at(beyond, Prot::RW).unwrap(), "half of it is not the arena's");
    // SAFETY: reserved above, and unused.
    unsafe { cowslip_sys::memory::unmap(taken) }.unwrap();
}

/// `MAP_FIXED` over memory: zeroes and another protection, in a frozen arena as in a live one, while the view keeps the
/// old content.
#[test]
fn memory_made_new_reads_zeroes_in_every_state() {
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let page = page_size_bytes();
    for is_frozen in [false, true] {
        let mut values = arena.slice::<u64>(3 * CHUNK_BYTES / 8).unwrap();
        values.fill(9);
        let view = is_frozen.then(|| arena.freeze().unwrap());
        let start = values.range().start;
        let parts = [
            VirtRange::new(start, CHUNK_BYTES),
            VirtRange::new(start + CHUNK_BYTES + page, 3 * page),
            VirtRange::new(start + 2 * CHUNK_BYTES, page),
        ];
        for part in parts {
            // SAFETY: page-aligned parts of the slice; no reference to them is used meanwhile.
            let is_new = unsafe {
                arena.raw().remap_zeroed(part, Prot::NONE).unwrap()
                    && arena.raw().remap_zeroed(part, Prot::RW).unwrap_or(false)
            };
            // Frozen memory without access cannot be cleared in place, and leaves the arena.
            assert!(
                is_new || is_frozen && arena.raw().parts(part)[0].1 == Usage::Detached,
                "{part}"
            );
            if !is_new {
                // SAFETY: as above.
                unsafe { arena.protect(part, Prot::RW) }.unwrap();
            }
        }
        for (i, &value) in values.iter().enumerate() {
            let address = start + i * 8;
            let wanted = if parts.iter().any(|part| part.contains(address)) { 0 } else { 9 };
            assert_eq!(value, wanted, "at {i}, frozen: {is_frozen}");
        }
        if let Some(view) = view {
            assert!(view.slice(&values).iter().all(|&value| value == 9), "the base stays");
        }
    }
}

#[test]
fn a_closed_arena_takes_nothing_in_and_gives_its_space_back() {
    let _watchdog = Watchdog::start("closing");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let kept = arena.allocate(ByteCount::mib(4), Prot::RW).unwrap();
    let freed = arena.allocate(ByteCount::mib(4), Prot::RW).unwrap();
    let holes = [(); 2].map(|()| arena.allocate(ByteCount::mib(4), Prot::RW).unwrap());
    // SAFETY: allocated just now.
    unsafe {
        (kept.start as *mut u64).write(7);
        (freed.start as *mut u64).write(8);
        arena.release(freed).unwrap();
        arena.raw().unmap(holes[0]).unwrap();
    }
    arena.raw().close().unwrap();
    // SAFETY: allocated above, and not used.
    unsafe { arena.raw().unmap(holes[1]) }.unwrap();
    let error = arena.allocate(ByteCount::mib(4), Prot::RW).unwrap_err();
    assert_eq!(error.kind(), cowslip::ErrorKind::OutOfMemory);
    for hole in holes {
        assert!(!arena.allocate_at(hole, Prot::RW).unwrap(), "{hole} is the kernel's");
        arena.raw().vacate(hole).unwrap();
        cowslip_sys::memory::reserve_at(hole).unwrap();
    }
    // Another mapping may be placed there.
    cowslip_sys::memory::reserve_at(freed).unwrap();
    // SAFETY: still allocated, and no thread writes to it.
    unsafe {
        assert_eq!((kept.start as *const u64).read(), 7);
        arena.raw().detach(kept, cowslip::raw::Departure::Limit).unwrap();
        assert_eq!((kept.start as *const u64).read(), 7);
    }
    assert_eq!((arena.metrics().used_bytes, arena.metrics().left_bytes), (0, 4 << 20));
    let view = arena.freeze().unwrap();
    let (_view, error) = view.into_copy(&[kept]).expect_err("it shows nothing");
    assert_eq!(error.kind(), cowslip::ErrorKind::Usage);
    drop(arena);
    let taken = cowslip_sys::memory::reserve_at(freed);
    assert_eq!(taken, Err(cowslip_sys::Errno::EXIST), "what is not the arena's stays");
}

#[test]
fn an_arena_that_is_cut_into_hundreds_of_protections_keeps_a_bounded_number() {
    let arena = Arena::new(ByteCount::mib(256)).unwrap();
    if !arena.raw().start_service() {
        return skip("userfaultfd", "nothing holds writers off");
    }
    let mut slice = arena.slice::<u8>(128 << 20).unwrap();
    slice.fill(3);
    let range = slice.range();
    // A dozen in each chunk: 768, one page each.
    let step = CHUNK_BYTES / 12 / page_size_bytes() * page_size_bytes();
    for start in (range.start..range.end()).step_by(step) {
        // SAFETY: only read from here on.
        unsafe { arena.protect(VirtRange::new(start, page_size_bytes()), Prot::READ) }.unwrap();
    }
    let parts = arena.raw().parts(range);
    let used = parts.iter().filter(|(_, usage, _)| *usage == Usage::Used).count();
    assert!(used <= 400, "a freeze makes two mappings of each: {used} of {}", parts.len());
    let kept: usize = parts
        .iter()
        .filter(|(_, usage, _)| *usage == Usage::Used)
        .map(|(range, ..)| range.len)
        .sum();
    assert!(kept >= CHUNK_BYTES, "a few protections are no reason to leave");
    assert!(slice.iter().all(|&byte| byte == 3));
}

//! A process without `CAP_SYS_ADMIN`: there a marker of write protection looks like a page in swap (`pagemap`).
#![allow(unsafe_code)]

mod support;

use std::sync::atomic::Ordering::Relaxed;

use cowslip::Arena;
use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};
use support::{Counters, PATIENCE, Watchdog, Writers, skip};

const CAP_SYS_ADMIN: u32 = 21;
const VERSION_3: u32 = 0x2008_0522;

/// For this thread, and those that it starts.
fn give_up_sys_admin() {
    let header = [VERSION_3, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: capget(2) and capset(2) of this version read a header of two numbers, and write or read twice three.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()), 0);
        sets[0].iter_mut().for_each(|set| *set &= !(1 << CAP_SYS_ADMIN));
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()), 0);
    }
}

/// An arena with the service thread of an ordinary user, though its huge pages may be root's.
fn written() -> Option<(Arena, Counters)> {
    let arena = Arena::new(ByteCount::mib(128)).unwrap();
    give_up_sys_admin();
    if !arena.raw().start_service() {
        skip("userfaultfd", "no service thread");
        return None;
    }
    let counters = Counters::new(&arena, ByteCount::mib(64));
    (0..counters.len()).for_each(|i| counters.at(i).store(1, Relaxed));
    Some((arena, counters))
}

#[test]
fn what_was_not_written_is_not_copied() {
    let _watchdog = Watchdog::start("clean chunks");
    let Some((arena, counters)) = written() else { return };
    let written = 3;
    drop(arena.freeze().unwrap());
    assert!(arena.wait_live(PATIENCE));
    let view = arena.freeze().unwrap();
    (0..written).for_each(|i| _ = counters.at(5 * i * CHUNK_BYTES / 8).fetch_add(1, Relaxed));
    drop(view);
    assert!(arena.wait_live(PATIENCE));
    let pages = arena.metrics().thawed_pages;
    let all = counters.len() * 8 / page_size_bytes();
    assert!(pages >= written as u64 && pages < all as u64 / 16, "{pages} of twice {all}");
    assert_eq!(counters.sum(), (counters.len() + written) as u64);
}

#[test]
fn i1_no_store_is_lost() {
    let _watchdog = Watchdog::start("stores without markers");
    let Some((arena, counters)) = written() else { return };
    let writers = Writers::start(&counters, 2);
    for _ in 0..8 {
        drop(arena.freeze_timeout(PATIENCE).unwrap());
    }
    assert!(arena.wait_live(PATIENCE));
    let stores = writers.stop();
    assert_eq!(counters.sum(), counters.len() as u64 + stores);
}

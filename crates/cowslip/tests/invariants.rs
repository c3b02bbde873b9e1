//! I1 to I6, each by name, with threads that write all the time.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ErrorKind, Fork, Prot, freeze_all};
use support::{Counters, PATIENCE, Scatter, Writers, checksum, huge_mapped_bytes, scaled};

const SIZE: ByteCount = ByteCount::mib(64);

#[test]
fn i1_no_update_is_lost_through_hundreds_of_cycles() {
    let arena = Arena::new(ByteCount::mib(256)).unwrap();
    let counters = Counters::new(&arena, SIZE);
    let writers = Writers::start(&counters, 3);
    let mut scatter = Scatter(7);
    for _ in 0..scaled(200) {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        if scatter.next().is_multiple_of(4) {
            checksum(frozen.slice(counters.slice()));
        }
        drop(frozen);
    }
    assert!(arena.wait_live(PATIENCE));
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
    assert_eq!(arena.metrics().freezes, scaled(200) as u64);
}

#[test]
fn i1_no_system_call_into_the_arena_fails_or_is_lost() {
    let arena = Arena::new(ByteCount::mib(128)).unwrap();
    let mut memory = arena.slice::<u8>(32 << 20).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let reader = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut scatter = Scatter(99);
            let mut calls = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let stamp = scatter.next().to_ne_bytes();
                near.write_all(&stamp).unwrap();
                let at = scatter.next() as usize % (memory.len() - 8);
                // recv(2) into the arena, across page and chunk borders.
                far.read_exact(&mut memory[at..at + 8]).unwrap();
                assert_eq!(memory[at..at + 8], stamp);
                calls += 1;
            }
            calls
        }
    });
    for _ in 0..scaled(150) {
        drop(arena.freeze_timeout(PATIENCE).unwrap());
    }
    assert!(arena.wait_live(PATIENCE));
    stop.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
}

#[test]
fn i2_the_view_does_not_change() {
    let arena = Arena::new(ByteCount::mib(256)).unwrap();
    let counters = Counters::new(&arena, SIZE);
    let writers = Writers::start(&counters, 2);
    for _ in 0..scaled(20) {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        let first = checksum(frozen.slice(counters.slice()));
        std::thread::yield_now();
        assert_eq!(first, checksum(frozen.slice(counters.slice())));
        assert_eq!(first, checksum(frozen.slice(counters.slice())));
    }
    writers.stop();
}

#[test]
fn i2_a_child_keeps_its_memory_while_the_parent_writes() {
    let arena = Arena::new(ByteCount::mib(256)).unwrap();
    let counters = Counters::new(&arena, SIZE);
    for i in 0..counters.len() {
        counters.at(i).store(i as u64, Ordering::Relaxed);
    }
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    #[allow(unsafe_code)]
    // SAFETY: the child reads memory and a socket and exits.
    match unsafe { cowslip::fork(&[&arena]) }.unwrap() {
        Fork::Child => {
            let mut go = [0];
            let heard = theirs.read_exact(&mut go).is_ok();
            let right =
                (0..counters.len()).all(|i| counters.at(i).load(Ordering::Relaxed) == i as u64);
            cowslip_sys::process::exit_now(if heard && right { 0 } else { 1 });
        }
        Fork::Parent(pid) => {
            for i in 0..counters.len() {
                counters.at(i).store(u64::MAX, Ordering::Relaxed);
            }
            ours.write_all(&[1]).unwrap();
            assert_eq!(cowslip_sys::process::wait_for(pid).unwrap(), 0);
        }
    }
    assert!(arena.wait_live(PATIENCE), "thawed when the child is gone");
    assert!((0..counters.len()).all(|i| counters.at(i).load(Ordering::Relaxed) == u64::MAX));
}

#[test]
fn i3_the_cut_is_causal_across_threads_and_arenas() {
    let first = Arena::new(ByteCount::mib(64)).unwrap();
    let second = Arena::new(ByteCount::mib(64)).unwrap();
    let a = Counters::new(&first, ByteCount::mib(8));
    let b = Counters::new(&second, ByteCount::mib(8));
    let stop = Arc::new(AtomicBool::new(false));
    let clock = Arc::new(AtomicU64::new(0));
    // Each tick is written to a, then to b: b may never be ahead of a in a cut.
    let ticker = std::thread::spawn({
        let (a, b, stop, clock) = (a.clone(), b.clone(), Arc::clone(&stop), Arc::clone(&clock));
        move || {
            while !stop.load(Ordering::Relaxed) {
                let tick = clock.fetch_add(1, Ordering::SeqCst) + 1;
                let place = (tick as usize * 513) % a.len();
                a.at(place).store(tick, Ordering::SeqCst);
                b.at(place).store(tick, Ordering::SeqCst);
                a.at(0).store(tick, Ordering::SeqCst);
                b.at(0).store(tick, Ordering::SeqCst);
            }
        }
    });
    for _ in 0..scaled(200) {
        assert!(first.wait_live(PATIENCE) && second.wait_live(PATIENCE));
        let views = freeze_all(&[&second, &first]).unwrap();
        let in_b = views[0].slice(b.slice())[0];
        let in_a = views[1].slice(a.slice())[0];
        assert!(in_a >= in_b && in_a - in_b <= 1, "a {in_a}, b {in_b}");
    }
    stop.store(true, Ordering::Relaxed);
    ticker.join().unwrap();
}

#[test]
fn i4_a_freeze_of_two_is_refused_whole_while_one_is_held() {
    let first = Arena::new(ByteCount::mib(32)).unwrap();
    let second = Arena::new(ByteCount::mib(32)).unwrap();
    let mut slice = first.slice::<u64>(1000).unwrap();
    let _other = second.slice::<u64>(1000).unwrap();
    slice[1] = 5;
    let frozen = first.freeze().unwrap();
    slice[1] = 6;
    first.raw().pin();
    let error = freeze_all(&[&second, &first]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(second.metrics().frozen_chunks, 0, "the other arena was not touched");
    assert_eq!((slice[1], frozen.slice(&slice)[1]), (6, 5));
}

#[test]
#[allow(unsafe_code)]
fn i5_discarded_memory_reads_zeroes_live_and_frozen_and_the_view_keeps_it() {
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let mut slice = arena.slice::<u8>(4 * CHUNK_BYTES).unwrap();
    slice.fill(7);
    let page = cowslip::units::page_size_bytes();
    let part = |start: usize, len| cowslip::units::VirtRange::new(slice.range().start + start, len);
    let (small, whole) = (part(page, page), part(CHUNK_BYTES, CHUNK_BYTES));
    let after = part(3 * CHUNK_BYTES, 2 * page);

    let frozen = arena.freeze().unwrap();
    // SAFETY: only this thread uses the slice.
    unsafe {
        arena.discard(small).unwrap();
        arena.discard(whole).unwrap();
    }
    let zeroes =
        |slice: &[u8], start: usize, len| slice[start..start + len].iter().all(|&b| b == 0);
    assert!(zeroes(&slice, page, page) && zeroes(&slice, CHUNK_BYTES, CHUNK_BYTES));
    assert!(slice[..page].iter().all(|&b| b == 7));
    slice[CHUNK_BYTES + 5] = 9;
    assert!(frozen.slice(&slice).iter().all(|&b| b == 7));
    drop(frozen);
    assert!(arena.wait_live(PATIENCE));
    assert!(zeroes(&slice, page, page), "zero after the thaw");
    assert_eq!(slice[CHUNK_BYTES + 5], 9);
    slice[CHUNK_BYTES + 5] = 0;
    assert!(zeroes(&slice, CHUNK_BYTES, CHUNK_BYTES), "a dropped chunk stays dropped");
    // SAFETY: as above.
    unsafe { arena.discard(after) }.unwrap();
    assert!(zeroes(&slice, 3 * CHUNK_BYTES, 2 * page), "zero while live");
    assert_eq!(slice[3 * CHUNK_BYTES + 2 * page], 7);
}

#[test]
#[allow(unsafe_code)]
fn i5_released_memory_comes_back_zeroed_in_every_state() {
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    for round in 0..scaled(12) {
        let frozen = (round % 3 == 1).then(|| arena.freeze_timeout(PATIENCE).unwrap());
        for len in [4096, 64 << 10, CHUNK_BYTES, 3 * CHUNK_BYTES + 4096] {
            let mut slice = arena.slice::<u8>(len).unwrap();
            assert!(slice.iter().all(|&b| b == 0), "round {round}, {len} bytes");
            slice.fill(0xee);
        }
        drop(frozen);
    }
}

#[test]
#[allow(unsafe_code)]
fn i5_protections_survive_freeze_and_thaw() {
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let page = cowslip::units::page_size_bytes();
    let mut slice = arena.slice::<u8>(CHUNK_BYTES).unwrap();
    slice.fill(3);
    let guard = cowslip::units::VirtRange::new(slice.range().start + 5 * page, page);
    // SAFETY: only the probe below accesses the guard.
    unsafe { arena.protect(guard, Prot::NONE) }.unwrap();
    for _ in 0..3 {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        assert_eq!(protection(guard.start), "---p");
        assert_eq!(protection(guard.end()), "rw-p");
        drop(frozen);
        assert!(arena.wait_live(PATIENCE));
        assert_eq!(protection(guard.start), "---s");
        slice[0] += 1;
    }
    // SAFETY: as above.
    unsafe { arena.protect(guard, Prot::RW) }.unwrap();
    assert_eq!(slice[5 * page], 3, "its content survived too");
    assert_eq!(slice[0], 6);
}

fn protection(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let parse = |hex| usize::from_str_radix(hex, 16).unwrap();
        (parse(start)..parse(end)).contains(&address)
    });
    line.expect("mapped").split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn i6_threads_that_wait_for_a_freeze_or_a_thaw_go_on() {
    let arena = Arena::new(ByteCount::mib(256)).unwrap();
    let counters = Counters::new(&arena, SIZE);
    let writers = Writers::start(&counters, 8);
    for round in 0..scaled(40) {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        if round % 8 == 0 {
            arena.raw().pause_thaw();
            drop(frozen);
            assert!(!arena.wait_live(std::time::Duration::from_millis(20)), "paused");
            arena.raw().resume_thaw();
        }
    }
    // Joining them is the test: a thread that hangs does not end.
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
}

#[test]
fn i6_a_child_killed_at_once_does_not_keep_the_arena_frozen() {
    let arena = Arena::new(ByteCount::mib(256)).unwrap();
    let counters = Counters::new(&arena, SIZE);
    let writers = Writers::start(&counters, 2);
    for _ in 0..scaled(20) {
        #[allow(unsafe_code)]
        // SAFETY: the child waits to be killed.
        match unsafe { cowslip::fork(&[&arena]) }.unwrap() {
            Fork::Child => loop {
                std::thread::park();
            },
            Fork::Parent(pid) => {
                #[allow(unsafe_code)]
                // SAFETY: kill(2) of the child started above.
                unsafe {
                    libc::kill(pid, libc::SIGKILL);
                }
                cowslip_sys::process::wait_for(pid).unwrap();
            }
        }
        assert!(arena.wait_live(PATIENCE));
    }
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
}

#[test]
fn huge_pages_are_whole_after_the_thaw() {
    let arena = Arena::new(ByteCount::mib(256)).unwrap();
    let counters = Counters::new(&arena, SIZE);
    if !arena.pages().is_huge() {
        support::skip("huge", "this process gets no huge pages");
        return;
    }
    for _ in 0..scaled(5) {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        for i in (0..counters.len()).step_by(40_000) {
            counters.at(i).store(1, Ordering::Relaxed);
        }
        drop(frozen);
        assert!(arena.wait_live(PATIENCE));
        counters.sum();
        assert_eq!(huge_mapped_bytes(counters.slice().range()), SIZE.0);
    }
}

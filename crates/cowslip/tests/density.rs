#![allow(unsafe_code)]
//! An arena holds the memory that its program uses, and little more: memory that is given back leaves the file, and
//! sparsely used memory begins on base pages. Dense memory is on huge pages.
//!
//! Failpoints apply to the whole process: one test at a time.

mod support;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, Pages, Prot};
use cowslip_sys::failpoints::{Op, fail};
use cowslip_sys::memory::{self, Advice};
use cowslip_sys::{BorrowedFd, Errno, memfile};
use support::children::wait_for_ever;
use support::{
    Counters, PATIENCE, Scatter, Watchdog, alone, eventually, fork_child, huge_mapped_bytes,
    scaled, skip, status_of,
};

const BYTES: ByteCount = ByteCount::mib(32);
const SMALL: ByteCount = ByteCount::mib(14);
const SMALL_CHUNKS: usize = 7;
const WORDS: usize = 4096 / 8;

fn held_bytes(arena: &Arena) -> u64 {
    let held = |number: u64| {
        // SAFETY: the arena keeps this descriptor open as long as it has the file.
        let file = unsafe { BorrowedFd::borrow_raw(number as i32) };
        memfile::allocated_bytes(file).expect("a file")
    };
    arena.metrics().descriptors().map(held).sum()
}

fn huge_arena() -> Option<Arena> {
    let arena = Arena::new(ByteCount::mib(128)).unwrap();
    match arena.pages() {
        Pages::HugeTmpfs | Pages::HugeMemfd if page_size_bytes() == 4096 => Some(arena),
        pages => {
            skip("huge", &format!("the arena is made of {pages}"));
            None
        }
    }
}

/// Returns true if the kernel can make file memory huge afterwards.
fn can_collapse() -> bool {
    let arena = Arena::new(ByteCount::mib(2)).unwrap();
    let chunk = arena.allocate(ByteCount(CHUNK_BYTES as u64), Prot::RW).unwrap();
    // SAFETY: allocated just now, for this test alone.
    let collapsed = unsafe {
        (chunk.start as *mut u8).write(1);
        memory::advise(chunk, Advice::Collapse)
    };
    collapsed.inspect_err(|errno| skip("shmem_collapse", &errno.to_string())).is_ok()
}

/// An arena that begins on base pages, and has a service thread.
fn small_arena() -> Option<Arena> {
    let arena = huge_arena()?;
    arena.raw().begin_small();
    if !arena.raw().start_service() {
        skip("userfaultfd", "no service thread");
        return None;
    }
    Some(arena)
}

fn page(counters: &Counters, i: usize) -> VirtRange {
    VirtRange::new(counters.slice().range().start + i * 4096, 4096)
}

fn pages_of(counters: &Counters) -> usize {
    counters.len() / WORDS
}

/// Fills each word with its own number.
fn fill(counters: &Counters) {
    (0..counters.len()).for_each(|i| counters.at(i).store(i as u64 + 1, Relaxed));
}

/// True for seven of ten pages, in pieces of two, at random.
fn is_dropped(i: usize) -> bool {
    Scatter((i as u64 / 2 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).next() % 10 < 7
}

fn drop_pages(arena: &Arena, counters: &Counters, is_dropped: impl Fn(usize) -> bool) {
    for i in (0..pages_of(counters)).filter(|i| is_dropped(*i)) {
        // SAFETY: no other thread uses this page.
        unsafe { arena.discard(page(counters, i)) }.unwrap();
    }
}

fn check(counters: &Counters, is_dropped: impl Fn(usize) -> bool) {
    for i in 0..counters.len() {
        let expected = if is_dropped(i / WORDS) { 0 } else { i as u64 + 1 };
        assert_eq!(counters.at(i).load(Relaxed), expected, "word {i}");
    }
}

fn kept_bytes(counters: &Counters) -> u64 {
    (0..pages_of(counters)).filter(|i| !is_dropped(*i)).count() as u64 * 4096
}

#[test]
fn what_is_given_back_of_huge_pages_leaves_the_file() {
    let _alone = alone();
    let _watchdog = Watchdog::start("parts given back");
    for has_service in [false, true] {
        let Some(arena) = huge_arena() else { return };
        if has_service && !arena.raw().start_service() {
            return skip("userfaultfd", "no service thread");
        }
        let counters = Counters::new(&arena, BYTES);
        fill(&counters);
        assert!(huge_mapped_bytes(counters.slice().range()) > 0);
        drop_pages(&arena, &counters, is_dropped);
        let (held, kept) = (held_bytes(&arena), kept_bytes(&counters));
        assert!(held as f64 <= 1.15 * kept as f64, "{held} bytes are held for {kept}");
        assert!(arena.metrics().split_chunks > 0);
        check(&counters, is_dropped);
    }
}

#[test]
fn a_huge_page_of_which_little_is_given_back_stays() {
    let _alone = alone();
    let _watchdog = Watchdog::start("little given back");
    let Some(arena) = huge_arena() else { return };
    let counters = Counters::new(&arena, BYTES);
    fill(&counters);
    let is_dropped = |i: usize| i % 10 == 3;
    drop_pages(&arena, &counters, is_dropped);
    assert_eq!((held_bytes(&arena), arena.metrics().split_chunks), (BYTES.0, 0));
    check(&counters, is_dropped);
}

#[test]
fn pages_that_are_in_use_again_are_not_given_back() {
    let _alone = alone();
    let _watchdog = Watchdog::start("pages used again");
    let Some(arena) = huge_arena() else { return };
    let counters = Counters::new(&arena, BYTES);
    for round in 0..4 {
        fill(&counters);
        // Different pages each time, and never an eighth at once.
        drop_pages(&arena, &counters, |i| i % 16 == round);
    }
    check(&counters, |i| i % 16 == 3);
    assert_eq!(arena.metrics().split_chunks, 0, "all but a sixteenth is in use");
}

#[test]
fn unmapped_parts_leave_the_file_with_those_that_are_given_back() {
    let _alone = alone();
    let _watchdog = Watchdog::start("parts unmapped");
    let Some(arena) = huge_arena() else { return };
    let range = arena.allocate(ByteCount::mib(2), Prot::RW).unwrap();
    // SAFETY: allocated just now, for this test alone.
    unsafe { std::ptr::write_bytes(range.start as *mut u8, 7, range.len) };
    let part =
        |first: usize, pages: usize| VirtRange::new(range.start + first * 4096, pages * 4096);
    // SAFETY: these parts are not used any more.
    unsafe { arena.release(part(0, 60)).and_then(|()| arena.discard(part(100, 60))) }.unwrap();
    assert_eq!(held_bytes(&arena), (512 - 120) * 4096);
    let again = arena.allocate(ByteCount(60 * 4096), Prot::RW).unwrap();
    assert_eq!(again, part(0, 60));
    // SAFETY: allocated.
    let content = unsafe { std::slice::from_raw_parts(range.start as *const u8, range.len) };
    let is_zero = |i: usize| i < 60 || (100..160).contains(&i);
    for (i, page) in content.chunks(4096).enumerate() {
        assert!(page.iter().all(|&byte| byte == if is_zero(i) { 0 } else { 7 }), "page {i}");
    }
}

#[test]
fn i2_a_view_keeps_what_is_given_back_and_the_thaw_gives_it_back() {
    let _alone = alone();
    let _watchdog = Watchdog::start("given back while frozen");
    let Some(arena) = huge_arena() else { return };
    if !arena.raw().start_service() {
        return skip("userfaultfd", "no service thread");
    }
    let counters = Counters::new(&arena, BYTES);
    fill(&counters);
    let frozen = arena.freeze_timeout(PATIENCE).unwrap();
    drop_pages(&arena, &counters, is_dropped);
    let is_whole = || (1..).zip(frozen.slice(counters.slice())).all(|(i, word)| *word == i);
    assert!(is_whole());
    check(&counters, is_dropped);
    assert!(is_whole());
    // Reading live memory that was given back allocates it again.
    drop_pages(&arena, &counters, is_dropped);
    drop(frozen);
    assert!(arena.wait_live(PATIENCE));
    let most = (1.15 * kept_bytes(&counters) as f64) as u64;
    eventually("what was given back leaves the file", || held_bytes(&arena) <= most);
    check(&counters, is_dropped);
}

#[test]
fn a_file_that_split_chunks_keep_open_holds_nothing_else() {
    const HOT_CHUNKS: usize = 10;
    const PAGES: usize = CHUNK_BYTES / 4096;
    let _alone = alone();
    let _watchdog = Watchdog::start("several files of one arena");
    let Some(arena) = huge_arena() else { return };
    if !arena.raw().start_service() {
        return skip("userfaultfd", "no service thread");
    }
    let counters = Counters::new(&arena, BYTES);
    let chunks = pages_of(&counters) / PAGES;
    fill(&counters);
    let is_dropped = |i: usize| i / PAGES == chunks - 1 && is_dropped(i);
    drop_pages(&arena, &counters, is_dropped);
    assert_eq!(arena.metrics().split_chunks, 1);
    let frozen = arena.freeze_timeout(PATIENCE).unwrap();
    let moved = |count: usize| arena.metrics().moved_chunks >= count as u64;
    eventually("hot chunks move to a second file", || {
        (0..HOT_CHUNKS * PAGES * WORDS)
            .step_by(WORDS)
            .for_each(|i| counters.at(i).store(i as u64 + 1, Relaxed));
        moved(HOT_CHUNKS)
    });
    drop(frozen);
    assert!(arena.wait_live(PATIENCE));
    eventually("the others follow, but for the split one", || moved(chunks - 1));
    let most = (0..pages_of(&counters)).filter(|i| !is_dropped(*i)).count() as u64 * 4096;
    eventually("the first file holds the split chunk", || held_bytes(&arena) <= most);
    check(&counters, is_dropped);
}

#[test]
fn i1_no_store_is_lost_while_others_give_pages_back_and_fork() {
    let _alone = alone();
    let _watchdog = Watchdog::start("stores while chunks are split");
    let Some(arena) = huge_arena() else { return };
    if !arena.raw().start_service() {
        return skip("userfaultfd", "no service thread");
    }
    let counters = Counters::new(&arena, ByteCount::mib(8));
    // The first half of each chunk is counted in, the other half is filled and given back.
    let is_counted = |word: usize| word % (CHUNK_BYTES / 8) < CHUNK_BYTES / 16;
    let stop = AtomicBool::new(false);
    let written: u64 = std::thread::scope(|scope| {
        let count = |t: usize| {
            let (counters, stop) = (counters.clone(), &stop);
            scope.spawn(move || {
                let mut scatter = Scatter(0x5eed + t as u64);
                let mut written = 0;
                while !stop.load(Relaxed) {
                    // Pages with a single non-zero word, which a trim has to find.
                    let i = scatter.next() as usize % (counters.len() / WORDS) * WORDS + t;
                    if is_counted(i) {
                        let counter = counters.at(i);
                        counter.store(counter.load(Relaxed) + 1, Relaxed);
                        written += 1;
                    }
                    if written % 1024 == 0 {
                        std::thread::yield_now();
                    }
                }
                written
            })
        };
        let threads: Vec<_> = (0..4).map(count).collect();
        for round in 0..scaled(60) {
            for i in (0..pages_of(&counters)).filter(|i| !is_counted(i * WORDS)) {
                counters.at(i * WORDS + round % WORDS).store(1, Relaxed);
                if i % 3 != round % 3 {
                    // SAFETY: only this thread uses that half.
                    unsafe { arena.discard(page(&counters, i)) }.unwrap();
                }
            }
            if round % 8 == 0 {
                let theirs = counters.clone();
                let child = fork_child(&[&arena], move || theirs.sum() > 0).unwrap();
                assert_eq!(status_of(child), 0);
            }
        }
        stop.store(true, Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let counted = (0..counters.len()).filter(|i| is_counted(*i));
    assert_eq!(counted.map(|i| counters.at(i).load(Relaxed)).sum::<u64>(), written);
    assert!(arena.metrics().split_chunks > 0);
}

#[test]
fn i1_pages_given_back_and_taken_again_by_other_threads_keep_what_is_written() {
    let _alone = alone();
    let _watchdog = Watchdog::start("pages taken again");
    let Some(arena) = huge_arena() else { return };
    let counters = Counters::new(&arena, ByteCount::mib(8));
    fill(&counters);
    // Each thread has pages of all chunks, gives some back and fills them again: each trim meets pages that others use.
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (arena, counters) = (&arena, counters.clone());
            scope.spawn(move || {
                let mut scatter = Scatter(0xface + t as u64);
                for round in 1..scaled(200) as u64 {
                    let mut own = || scatter.next() as usize % (pages_of(&counters) / 4) * 4 + t;
                    let pages: Vec<_> = (0..400).map(|_| own()).collect();
                    for &i in &pages {
                        // SAFETY: this thread's own page.
                        unsafe { arena.discard(page(&counters, i)) }.unwrap();
                    }
                    for &i in &pages {
                        counters.at(i * WORDS + i % WORDS).store(round, Relaxed);
                    }
                    for &i in &pages {
                        let is_expected = |word: usize| match word == i % WORDS {
                            true => counters.at(i * WORDS + word).load(Relaxed) == round,
                            false => counters.at(i * WORDS + word).load(Relaxed) == 0,
                        };
                        assert!((0..WORDS).all(is_expected), "page {i}, round {round}");
                    }
                }
            });
        }
    });
    assert!(arena.metrics().split_chunks > 0);
}

#[test]
fn sparse_memory_holds_what_is_touched() {
    let _alone = alone();
    let _watchdog = Watchdog::start("sparse memory");
    let Some(arena) = small_arena() else { return };
    let counters = Counters::new(&arena, SMALL);
    let chunks = SMALL_CHUNKS;
    let touch = |by| {
        (0..chunks).for_each(|i| _ = counters.at(i * CHUNK_BYTES / 8).fetch_add(by, Relaxed));
    };
    touch(1);
    let most = chunks as u64 * 4096;
    assert_eq!(held_bytes(&arena), most);
    for _ in 0..3 {
        let theirs = counters.clone();
        let child = fork_child(&[&arena], move || {
            let all: u64 = (0..chunks).map(|i| theirs.at(i * CHUNK_BYTES / 8).load(Relaxed)).sum();
            // Memory that was never written reads as zeroes.
            all >= chunks as u64 && theirs.at(WORDS * 7).load(Relaxed) == 0
        });
        touch(1);
        // At another place of each chunk, which is a hole of the file.
        (0..chunks).for_each(|i| counters.at((i + 1) * CHUNK_BYTES / 8 - 1).store(9, Relaxed));
        assert_eq!(status_of(child.unwrap()), 0);
        assert!(arena.wait_live(PATIENCE));
        let held = held_bytes(&arena);
        assert!(held <= 2 * most + 4096 * 2, "{held}");
    }
    (0..chunks).for_each(|i| assert_eq!(counters.at(i * CHUNK_BYTES / 8).load(Relaxed), 4));
}

#[test]
fn a_place_that_was_empty_at_the_freeze_is_thawed_to_base_pages() {
    let _alone = alone();
    let _watchdog = Watchdog::start("empty places");
    let Some(arena) = small_arena() else { return };
    let counters = Counters::new(&arena, SMALL);
    counters.at(0).store(1, Relaxed);
    let child = fork_child(&[&arena], || wait_for_ever()).unwrap();
    for chunk in 1..SMALL_CHUNKS {
        // Enough runs that a window would show the chunk.
        (0..20)
            .for_each(|i| counters.at(chunk * CHUNK_BYTES / 8 + 3 * i * WORDS).store(5, Relaxed));
    }
    support::children::kill(child);
    assert!(arena.wait_live(PATIENCE));
    let held = held_bytes(&arena);
    assert!(held <= (1 + 6 * 21) * 4096, "{held}");
    assert_eq!(counters.sum(), 1 + 6 * 20 * 5);
}

#[test]
fn dense_memory_becomes_huge() {
    let _alone = alone();
    let _watchdog = Watchdog::start("dense memory");
    become_huge();
}

/// The same without cachestat, as before Linux 6.5.
#[test]
fn dense_memory_becomes_huge_where_there_is_no_cachestat() {
    let _alone = alone();
    let _watchdog = Watchdog::start("dense memory");
    let _missing = fail(Op::Cachestat, 0, u32::MAX, Errno::NOSYS);
    become_huge();
}

fn become_huge() {
    let Some(arena) = small_arena() else { return };
    if !can_collapse() {
        return;
    }
    let counters = Counters::new(&arena, SMALL);
    counters.at(0).store(1, Relaxed);
    assert_eq!(held_bytes(&arena), 4096);
    fill(&counters);
    let child = fork_child(&[&arena], || true).unwrap();
    assert_eq!(status_of(child), 0);
    let is_huge = || huge_mapped_bytes(counters.slice().range()) == SMALL.0;
    eventually("all of it is huge", is_huge);
    assert!(arena.wait_live(PATIENCE), "what is frozen is given back later");
    assert!(arena.metrics().collapsed_chunks >= SMALL_CHUNKS as u64);
    check(&counters, |_| false);
    // Memory that is given back leaves it again, and becomes huge again when it is filled.
    drop_pages(&arena, &counters, is_dropped);
    assert!(held_bytes(&arena) as f64 <= 1.15 * kept_bytes(&counters) as f64);
    fill(&counters);
    eventually("all of it is huge again", is_huge);
    check(&counters, |_| false);
}

#[test]
fn holes_of_what_was_made_huge_count_as_given_back() {
    let _alone = alone();
    let _watchdog = Watchdog::start("holes filled");
    let Some(arena) = small_arena() else { return };
    if !can_collapse() {
        return;
    }
    let counters = Counters::new(&arena, ByteCount::mib(2));
    let is_hole = |page: usize| page % 25 == 1;
    for i in (0..counters.len()).filter(|i| !is_hole(i / WORDS)) {
        counters.at(i).store(i as u64 + 1, Relaxed);
    }
    let child = fork_child(&[&arena], || true).unwrap();
    assert_eq!(status_of(child), 0);
    eventually("it is huge", || huge_mapped_bytes(counters.slice().range()) == 2 << 20);
    assert!(arena.wait_live(PATIENCE));
    // Each of them alone is less than an eighth.
    let is_given = |page: usize| page.is_multiple_of(11);
    drop_pages(&arena, &counters, is_given);
    let is_empty = |page: usize| is_hole(page) || is_given(page);
    let empty = (0..512).filter(|page| is_empty(*page)).count();
    assert!(empty >= 64 && held_bytes(&arena) < (2 << 20) - 60 * 4096, "{}", held_bytes(&arena));
    check(&counters, is_empty);
}

#[test]
fn a_program_that_fills_what_it_has_gets_more_of_it_on_huge_pages() {
    let _alone = alone();
    let _watchdog = Watchdog::start("trusted memory");
    let Some(arena) = huge_arena() else { return };
    arena.raw().begin_small();
    let (mut all, mut filled) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let more = Counters::new(&arena, ByteCount::mib(4));
        fill(&more);
        filled.push(huge_mapped_bytes(arena.range()) >> 20);
        all.push(more);
    }
    assert_eq!(filled, [0, 4, 8, 12]);
}

#[test]
fn a_program_is_trusted_with_as_much_again_and_not_twice_in_vain() {
    let _alone = alone();
    let _watchdog = Watchdog::start("trust that is not kept");
    let Some(arena) = huge_arena() else { return };
    arena.raw().begin_small();
    let first = Counters::new(&arena, ByteCount::mib(4));
    fill(&first);
    let touch = |counters: &Counters| {
        let before = held_bytes(&arena);
        (0..counters.len() * 8 / CHUNK_BYTES)
            .for_each(|i| counters.at(i * CHUNK_BYTES / 8).store(1, Relaxed));
        held_bytes(&arena) - before
    };
    let second = Counters::new(&arena, SMALL);
    assert_eq!(touch(&second), (4 << 20) + 5 * 4096);
    // It did not fill that.
    let more = Counters::new(&arena, ByteCount::mib(4));
    assert_eq!(touch(&more), 2 * 4096);
    let large = Counters::new(&arena, ByteCount::mib(64));
    assert_eq!(touch(&large), 32 * 4096, "however large");
}

#[test]
fn a_place_is_huge_again_if_it_was_filled_before_it_was_given_back() {
    let _alone = alone();
    let _watchdog = Watchdog::start("places that are used again");
    let Some(arena) = huge_arena() else { return };
    arena.raw().begin_small();
    let first = Counters::new(&arena, ByteCount::mib(8));
    fill(&first);
    let held_after = |is_filled: bool| {
        let place = Counters::new(&arena, ByteCount::mib(4));
        if is_filled {
            fill(&place);
        }
        place.at(0).store(1, Relaxed);
        held_bytes(&arena) - (8 << 20)
    };
    assert_eq!(held_after(true), 4 << 20);
    assert_eq!(held_after(false), 2 << 20, "it was filled, and so it is trusted");
    for _ in 0..3 {
        assert_eq!(held_after(false), 4096, "it was hardly touched");
    }
    assert_eq!(held_after(true), 4 << 20);
    assert_eq!(held_after(false), 2 << 20, "as much again is trusted");
}

#[test]
fn a_program_says_where_it_wants_huge_pages_and_where_it_does_not() {
    let _alone = alone();
    let _watchdog = Watchdog::start("advice about huge pages");
    let Some(arena) = small_arena() else { return };
    if !can_collapse() {
        return;
    }
    let counters = Counters::new(&arena, SMALL);
    let range = counters.slice().range();
    let part =
        |first, chunks| VirtRange::new(range.start + first * CHUNK_BYTES, chunks * CHUNK_BYTES);
    arena.raw().prefer_huge(part(0, 4), true);
    arena.raw().prefer_huge(VirtRange::new(part(6, 1).start + 4096, 4096), false);
    fill(&counters);
    assert!(huge_mapped_bytes(range) >= 4 * CHUNK_BYTES as u64);
    let child = fork_child(&[&arena], || true).unwrap();
    assert_eq!(status_of(child), 0);
    eventually("all but one is huge", || huge_mapped_bytes(range) == 6 * CHUNK_BYTES as u64);
    assert_eq!(huge_mapped_bytes(part(6, 1)), 0, "not the chunk that was not to be");
    check(&counters, |_| false);
    arena.raw().prefer_huge(part(6, 1), true);
    eventually("unless it is to be after all", || huge_mapped_bytes(range) == SMALL.0);
}

/// The last page of each chunk stays.
fn is_kept(counters: &Counters, page: usize) -> bool {
    !is_dropped(page) || page % 512 == 511 || page + 1 == pages_of(counters)
}

/// Discards pages, or overwrites them where that is refused.
fn drop_where_it_can(arena: &Arena, counters: &Counters) {
    for i in (0..pages_of(counters)).filter(|i| !is_kept(counters, *i)) {
        // SAFETY: no other thread uses this page.
        if unsafe { arena.discard(page(counters, i)) }.is_err() {
            (0..WORDS).for_each(|word| counters.at(i * WORDS + word).store(0, Relaxed));
        }
    }
}

#[test]
fn what_fails_costs_memory_and_nothing_else() {
    let _alone = alone();
    let _watchdog = Watchdog::start("splits that fail");
    for op in [
        Op::Fallocate,
        Op::UffdRegister,
        Op::UffdWriteProtect,
        Op::UffdUnregister,
        Op::Madvise,
        Op::Mmap,
    ] {
        let mut has_failed = false;
        for pass in 0..64 {
            let Some(arena) = small_arena() else { return };
            let counters = Counters::new(&arena, ByteCount::mib(4));
            arena.raw().prefer_huge(counters.slice().range(), true);
            fill(&counters);
            let stop = AtomicBool::new(false);
            let last = counters.len() - WORDS;
            let written = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let mut written = 0;
                    while !stop.load(Relaxed) {
                        // In both chunks: one page each that is not given back.
                        counters.at(last).fetch_add(1, Relaxed);
                        counters.at(CHUNK_BYTES / 8 - WORDS).fetch_add(1, Relaxed);
                        written += 1;
                    }
                    written
                });
                let rule = fail(op, pass, 1, Errno::NOMEM);
                drop_where_it_can(&arena, &counters);
                has_failed = rule.is_spent();
                drop(rule);
                let before = counters.at(last).load(Relaxed);
                eventually("stores go on", || counters.at(last).load(Relaxed) > before);
                stop.store(true, Relaxed);
                writer.join().unwrap()
            });
            for i in 0..counters.len() {
                let expected = match i {
                    _ if i == last || i == CHUNK_BYTES / 8 - WORDS => i as u64 + 1 + written,
                    _ if is_kept(&counters, i / WORDS) => i as u64 + 1,
                    _ => 0,
                };
                assert_eq!(counters.at(i).load(Relaxed), expected, "{op:?}, call {pass}, word {i}");
            }
            if !has_failed {
                break;
            }
        }
    }
}

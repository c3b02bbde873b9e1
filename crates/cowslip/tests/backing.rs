#![allow(unsafe_code)]
//! Backings of arenas: the hugetlb pool, base pages, and a system that gives no huge pages.
//!
//! These tests change settings of the whole system, one at a time, and restore them.

mod support;

use std::sync::atomic::Ordering::Relaxed;

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, Backing, Error, ErrorKind, Pages};
use support::images::{Folder, patterned, saved, verify};
use support::{
    Counters, PATIENCE, Setting, Watchdog, Writers, alone, checksum, eventually, fork_child,
    huge_mapped_bytes, scaled, skip, smaps_bytes, status_of,
};

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const SHMEM_THP: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

fn pool_of(pages: u64) -> Option<Setting> {
    let setting = Setting::change(POOL, &pages.to_string());
    if setting.is_none() {
        skip("hugetlb", "this process cannot make a hugetlb pool");
    }
    setting
}

/// A line of `/proc/meminfo` that counts hugetlb pages.
fn pool(field: &str) -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = info.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn hugetlb_arena(chunks: u64) -> Arena {
    let capacity = ByteCount(chunks * CHUNK_BYTES as u64);
    Arena::builder(capacity).backing(Backing::Hugetlb).build().unwrap()
}

fn chunks(arena: &Arena, count: usize) -> Counters {
    Counters::new(arena, ByteCount((count * CHUNK_BYTES) as u64))
}

fn names_the_pool(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let text = error.to_string();
    assert!(text.contains("vm.nr_hugepages") && text.contains("HugePages_Free"), "{text}");
}

fn hugetlb_bytes(counters: &Counters) -> u64 {
    let range = counters.slice().range();
    smaps_bytes(range, "Shared_Hugetlb") + smaps_bytes(range, "Private_Hugetlb")
}

#[test]
fn hugetlb_memory_beyond_the_pool_is_refused() {
    let _alone = alone();
    let Some(_pool) = pool_of(8) else { return };
    let arena = hugetlb_arena(32);
    assert_eq!(arena.pages(), Pages::Hugetlb);
    let counters = chunks(&arena, 6);
    (0..counters.len()).for_each(|i| counters.at(i).store(1, Relaxed));
    names_the_pool(&arena.slice::<u8>(4 * CHUNK_BYTES).unwrap_err());
    assert_eq!(counters.sum(), counters.len() as u64);
    drop(arena.slice::<u8>(2 * CHUNK_BYTES).expect("what is left can be had"));
    assert_eq!(pool("HugePages_Free"), 2, "and is given back");
}

#[test]
fn hugetlb_freeze_that_the_pool_cannot_pay_for_changes_nothing() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a freeze on hugetlb");
    let Some(_pool) = pool_of(8) else { return };
    let arena = hugetlb_arena(8);
    let counters = chunks(&arena, 5);
    let writers = Writers::start(&counters, 2);
    let before = (pool("HugePages_Free"), pool("HugePages_Rsvd"));
    for _ in 0..3 {
        names_the_pool(&arena.freeze().unwrap_err());
        let fork = fork_child(&[&arena], || true);
        names_the_pool(&fork.unwrap_err());
        assert_eq!((pool("HugePages_Free"), pool("HugePages_Rsvd")), before);
        assert_eq!(arena.metrics().frozen_chunks, 0);
        let seen = counters.sum();
        eventually("the writers go on", || counters.sum() > seen + 1000);
    }
    assert_eq!(arena.metrics().failed_freezes, 6);
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
}

#[test]
fn hugetlb_freeze_that_the_pool_can_pay_for() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a freeze on hugetlb");
    let Some(_pool) = pool_of(16) else { return };
    let arena = hugetlb_arena(8);
    let counters = chunks(&arena, 5);
    (0..counters.len()).step_by(64).for_each(|i| counters.at(i).store(0, Relaxed));
    let writers = Writers::start(&counters, 2);
    let can_thaw = arena.raw().start_service();
    for round in 0..scaled(5) {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        let first = checksum(frozen.slice(counters.slice()));
        let seen = counters.sum();
        eventually("the writers write", || counters.sum() > seen + 100_000);
        assert_eq!(first, checksum(frozen.slice(counters.slice())), "round {round}");
        if !can_thaw {
            skip("userfaultfd", "nothing thaws while threads write");
            writers.stop();
            return;
        }
        drop(frozen);
        assert!(arena.wait_live(PATIENCE), "{:?}", arena.metrics());
    }
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
    assert_eq!(hugetlb_bytes(&counters), 5 * CHUNK_BYTES as u64);
    assert_eq!((pool("HugePages_Free"), pool("HugePages_Rsvd")), (11, 0), "no page is kept");
    let child = fork_child(&[&arena], || counters.sum() == written).unwrap();
    assert_eq!(status_of(child), 0);
    assert!(arena.wait_live(PATIENCE));
}

/// Parts are copied by whole pages of the pool, and the arena is frozen again meanwhile.
#[test]
fn hugetlb_view_that_ends_leaves_copies() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a copy of a view of hugetlb");
    let Some(_pool) = pool_of(16) else { return };
    let arena = hugetlb_arena(4);
    let mut words = arena.slice::<u64>(3 * CHUNK_BYTES / 8).unwrap();
    let mut kept = Vec::new();
    for step in 1..4 {
        words.fill(step);
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        let start = words.range().start;
        let parts =
            [VirtRange::new(start + 8, 80), VirtRange::new(start + CHUNK_BYTES - 800, 1600)];
        let shown = parts.map(|part| frozen.view_address(part.start));
        let copy = frozen.into_copy(&parts).map_err(|(_, error)| error).unwrap();
        kept.push((copy, parts.map(|part| part.len / 8), shown, step));
    }
    for (_copy, lengths, shown, step) in &kept {
        for (length, from) in lengths.iter().zip(shown) {
            // SAFETY: shown by the view, and kept by its copy; nothing writes to either.
            let now = unsafe { std::slice::from_raw_parts(*from as *const u64, *length) };
            assert!(now.iter().all(|word| word == step), "{step}");
        }
    }
}

#[test]
fn hugetlb_arenas_make_no_templates() {
    let _alone = alone();
    let Some(_pool) = pool_of(8) else { return };
    let arena = hugetlb_arena(2);
    let counters = chunks(&arena, 1);
    let refused = arena.freeze().unwrap().into_template().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    // SAFETY: no other thread uses the arena.
    unsafe { arena.thaw_exclusive() }.unwrap();
    counters.at(0).store(1, Relaxed);
}

#[test]
fn hugetlb_memory_that_is_dropped_reads_zeroes_in_every_state() {
    let _alone = alone();
    let _watchdog = Watchdog::start("dropped hugetlb memory");
    let Some(_pool) = pool_of(16) else { return };
    let arena = hugetlb_arena(8);
    let counters = chunks(&arena, 4);
    let page = page_size_bytes();
    let part = |start, len| VirtRange::new(counters.slice().range().start + start, len);
    let fill = |value: u64| (0..counters.len()).for_each(|i| counters.at(i).store(value, Relaxed));
    let (small, whole) = (part(page, page), part(CHUNK_BYTES, CHUNK_BYTES));
    let (in_small, in_whole) = (page / 8, CHUNK_BYTES / 8 + 1000);
    // SAFETY: no other thread uses the counters.
    let discard = || unsafe { arena.discard(small).and_then(|()| arena.discard(whole)) };
    let zeroes = || {
        let is_zero = |range: VirtRange| {
            let first = (range.start - counters.slice().range().start) / 8;
            (first..first + range.len / 8).all(|i| counters.at(i).load(Relaxed) == 0)
        };
        is_zero(small) && is_zero(whole)
    };
    fill(7);
    discard().expect("live");
    assert!(zeroes() && counters.at(0).load(Relaxed) == 7);
    // A dropped page stays reserved: otherwise another process could take it, and a touch would
    // kill us.
    assert_eq!(pool("HugePages_Free") - pool("HugePages_Rsvd"), 12);
    fill(7);
    let frozen = arena.freeze().unwrap();
    discard().expect("frozen");
    assert!(zeroes() && counters.at(0).load(Relaxed) == 7);
    counters.at(in_small).store(3, Relaxed);
    counters.at(in_whole).store(4, Relaxed);
    assert!(frozen.slice(counters.slice()).iter().all(|&value| value == 7));
    // SAFETY: no other thread uses the arena.
    unsafe { frozen.thaw_exclusive() }.unwrap();
    assert_eq!(counters.at(in_small).swap(0, Relaxed), 3);
    assert_eq!(counters.at(in_whole).swap(0, Relaxed), 4);
    assert!(zeroes() && counters.at(0).load(Relaxed) == 7);
}

/// Freezes and thaws under load, and returns the bytes mapped by huge entries afterwards.
fn cycle(arena: &Arena) -> u64 {
    let _watchdog = Watchdog::start("freezes and thaws");
    let counters = chunks(arena, 3);
    (0..counters.len()).step_by(64).for_each(|i| counters.at(i).store(0, Relaxed));
    let writers = Writers::start(&counters, 2);
    let mut written = 0;
    if arena.raw().start_service() {
        for _ in 0..scaled(5) {
            let frozen = arena.freeze_timeout(PATIENCE).unwrap();
            let first = checksum(frozen.slice(counters.slice()));
            assert_eq!(first, checksum(frozen.slice(counters.slice())));
        }
        assert!(arena.wait_live(PATIENCE));
        written = writers.stop();
    } else {
        let frozen = arena.freeze().unwrap();
        written += writers.stop();
        // SAFETY: the writers have ended.
        unsafe { frozen.thaw_exclusive() }.unwrap();
    }
    assert_eq!(counters.sum(), written);
    huge_mapped_bytes(counters.slice().range())
}

const CYCLE_BYTES: u64 = 3 * CHUNK_BYTES as u64;

/// Checks that `arena.pages()` matches the pages that the kernel then gives.
fn keeps_its_word(arena: &Arena) {
    let huge = cycle(arena);
    let promised = if arena.pages().is_huge() { CYCLE_BYTES } else { 0 };
    assert_eq!(huge, promised, "{}", arena.pages());
}

#[test]
fn base_pages_are_base_pages() {
    let _alone = alone();
    let arena = Arena::builder(ByteCount::mib(32)).backing(Backing::Base).build().unwrap();
    assert_eq!(arena.pages(), Pages::Base);
    let huge = cycle(&arena);
    if !matches!(Setting::read(SHMEM_THP).as_deref(), Some("always" | "force" | "within_size")) {
        assert_eq!(huge, 0);
    }
}

#[test]
fn huge_pages_where_the_system_gives_them() {
    let _alone = alone();
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    if !arena.pages().is_huge() {
        skip("huge", "this process gets no huge pages");
    }
    keeps_its_word(&arena);
}

#[test]
fn a_system_without_transparent_huge_pages() {
    let _alone = alone();
    for (thp, shmem) in [("never", "never"), ("never", "deny"), ("always", "deny")] {
        let settings = [Setting::change(THP, thp), Setting::change(SHMEM_THP, shmem)];
        if settings.iter().any(Option::is_none) {
            skip("root", "this process cannot change the settings of transparent huge pages");
            return;
        }
        let arena = Arena::new(ByteCount::mib(32)).unwrap();
        println!("enabled={thp} shmem_enabled={shmem}: {}", arena.pages());
        keeps_its_word(&arena);
        let arena = Arena::builder(ByteCount::mib(32)).backing(Backing::Base).build().unwrap();
        keeps_its_word(&arena);
    }
}

#[test]
fn images_of_every_backing_are_exact_frozen_either_way() {
    let _alone = alone();
    let folder = Folder::new("backings");
    let path = folder.file("image");
    let pool = pool_of(40);
    let all = [Backing::Thp, Backing::Base, Backing::Hugetlb];
    for backing in all.into_iter().filter(|kind| *kind != Backing::Hugetlb || pool.is_some()) {
        for userfaultfd in [true, false] {
            let builder = Arena::builder(ByteCount::mib(32)).backing(backing);
            let arena = builder.userfaultfd(userfaultfd).build().unwrap();
            let mut slice = patterned(&arena);
            let content = slice.to_vec();
            let frozen = arena.freeze().unwrap();
            slice.fill(1);
            saved(&frozen, &path);
            let image = verify(&path).unwrap();
            let mut chunk = vec![0; CHUNK_BYTES];
            for (i, words) in (0..).zip(content.chunks(CHUNK_BYTES / 8)) {
                image.read_chunk(0, i, &mut chunk).unwrap();
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert!(chunk[..bytes.len()] == bytes, "chunk {i} of {backing:?}, {userfaultfd}");
                assert!(chunk[bytes.len()..].iter().all(|&byte| byte == 0));
            }
        }
    }
}

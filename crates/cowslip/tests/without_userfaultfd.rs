#![allow(unsafe_code)]
//! The same contract without userfaultfd.
//!
//! All of it runs twice: here, with arenas that decline userfaultfd, and in a process of an
//! unprivileged user, which is refused it (and a tmpfs of its own).

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ErrorKind, FreezeMethod, Pages, Prot};
use support::{
    Counters, Setting, Watchdog, Writers, checksum, eventually, fork_child, pattern, scaled, skip,
    status_of,
};

const NOBODY: u32 = 65534;
const AS_NOBODY: &str = "COWSLIP_TEST_AS_NOBODY";

fn is_nobody() -> bool {
    std::env::var_os(AS_NOBODY).is_some()
}

fn arena(mib: u64) -> Arena {
    // A process that is refused userfaultfd need not decline it.
    Arena::builder(ByteCount::mib(mib)).userfaultfd(is_nobody()).build().unwrap()
}

fn freeze(arena: &Arena) -> cowslip::Frozen {
    let frozen = arena.freeze().unwrap();
    assert_eq!(frozen.method(), FreezeMethod::WithoutUserfaultfd);
    frozen
}

fn fill(counters: &Counters, value: u64) {
    (0..counters.len()).for_each(|i| counters.at(i).store(value, Relaxed));
}

fn holds(counters: &Counters, value: u64) -> bool {
    (0..counters.len()).all(|i| counters.at(i).load(Relaxed) == value)
}

#[test]
fn i1_i2_the_view_stands_still_and_no_update_is_lost() {
    let _watchdog = Watchdog::start("without userfaultfd");
    let arena = arena(64);
    let counters = Counters::new(&arena, ByteCount::mib(16));
    let mut total = 0;
    for round in 0..scaled(20) {
        let writers = Writers::start(&counters, 2);
        let before = counters.sum();
        eventually("the writers write", || counters.sum() > before);
        let frozen = freeze(&arena);
        let first = checksum(frozen.slice(counters.slice()));
        let before = counters.sum();
        eventually("the writers go on", || counters.sum() > before);
        assert_eq!(first, checksum(frozen.slice(counters.slice())));
        let frozen_sum: u64 = frozen.slice(counters.slice()).iter().sum();
        total += writers.stop();
        assert!(frozen_sum <= total);
        assert_eq!(counters.sum(), total, "round {round}");
        // SAFETY: the writers have ended.
        unsafe { frozen.thaw_exclusive() }.unwrap();
        assert_eq!(counters.sum(), total, "round {round}, thawed");
        let metrics = arena.metrics();
        assert_eq!((metrics.frozen_chunks, metrics.has_userfaultfd), (0, 0));
    }
}

/// Thaws an arena that only its test's thread uses. A child that another test forked meanwhile may read it for a
/// moment.
fn thaw_alone(arena: &Arena) {
    // SAFETY: no other thread uses the arena.
    eventually("a thaw", || unsafe { arena.thaw_exclusive() }.is_ok());
}

#[test]
fn i2_i5_a_child_and_its_parent_keep_their_own() {
    let _watchdog = Watchdog::start("without userfaultfd");
    let arena = arena(32);
    let counters = Counters::new(&arena, ByteCount::mib(8));
    let ours = Counters::new(&arena, ByteCount::mib(2));
    // Forked while frozen again and again: each child has the content of its fork.
    for moment in 1..=scaled(20) as u64 {
        fill(&counters, moment);
        let child = fork_child(&[&arena], || {
            let right = holds(&counters, moment);
            fill(&ours, u64::MAX);
            right && holds(&counters, moment) && holds(&ours, u64::MAX)
        });
        let child = child.unwrap();
        fill(&counters, u64::MAX - moment);
        assert_eq!(status_of(child), 0, "moment {moment}");
        assert!(holds(&counters, u64::MAX - moment) && holds(&ours, 0));
    }
    assert_eq!(arena.freeze().unwrap_err().kind(), ErrorKind::Busy);
    thaw_alone(&arena);
    assert!(holds(&counters, u64::MAX - scaled(20) as u64) && holds(&ours, 0));
    drop(freeze(&arena));
}

#[test]
fn i2_a_thaw_is_refused_while_somebody_reads() {
    let _watchdog = Watchdog::start("without userfaultfd");
    let arena = arena(16);
    let counters = Counters::new(&arena, ByteCount::mib(4));
    fill(&counters, 1);
    let frozen = freeze(&arena);
    // SAFETY: no other thread uses the arena, here and below.
    assert_eq!(unsafe { arena.thaw_exclusive() }.unwrap_err().kind(), ErrorKind::Busy);
    let (read, write) = std::io::pipe().unwrap();
    let child = fork_child(&[&arena], || {
        let heard = (&read).read_exact(&mut [0]).is_ok();
        heard && holds(&counters, 1)
    })
    .unwrap();
    fill(&counters, 2);
    assert!(frozen.slice(counters.slice()).iter().all(|&value| value == 1));
    // SAFETY: as above.
    assert_eq!(unsafe { frozen.thaw_exclusive() }.unwrap_err().kind(), ErrorKind::Busy);
    std::io::Write::write_all(&mut &write, &[1]).unwrap();
    assert_eq!(status_of(child), 0);
    thaw_alone(&arena);
    assert!(holds(&counters, 2));
}

#[test]
fn i5_dropped_and_released_memory_is_zero_in_every_state() {
    let _watchdog = Watchdog::start("without userfaultfd");
    let arena = arena(64);
    let page = page_size_bytes();
    let zeroes = |slice: &[u8]| slice.iter().all(|&byte| byte == 0);
    for _ in 0..4 {
        let mut slice = arena.slice::<u8>(3 * CHUNK_BYTES).unwrap();
        assert!(zeroes(&slice), "released memory is handed out clean");
        slice.fill(7);
        let part = |start, len| VirtRange::new(slice.range().start + start, len);
        let (small, whole) = (part(page, 2 * page), part(CHUNK_BYTES, CHUNK_BYTES));
        let frozen = freeze(&arena);
        // SAFETY: no other thread uses the slice.
        unsafe { arena.discard(small).and_then(|()| arena.discard(whole)) }.unwrap();
        let dropped = |slice: &[u8]| {
            zeroes(&slice[page..3 * page]) && zeroes(&slice[CHUNK_BYTES + 1..2 * CHUNK_BYTES])
        };
        assert!(dropped(&slice));
        slice[CHUNK_BYTES] = 9;
        assert!(frozen.slice(&slice).iter().all(|&byte| byte == 7));
        let other = arena.slice::<u8>(CHUNK_BYTES).unwrap();
        assert!(zeroes(&other) && zeroes(frozen.slice(&other)), "allocated after the freeze");
        // SAFETY: as above.
        unsafe { frozen.thaw_exclusive() }.unwrap();
        assert!(dropped(&slice));
        assert_eq!((slice[0], slice[CHUNK_BYTES], slice[3 * CHUNK_BYTES - 1]), (7, 9, 7));
    }
}

#[test]
fn i4_i5_protections_and_what_they_hide_survive() {
    let _watchdog = Watchdog::start("without userfaultfd");
    let arena = arena(16);
    let mut slice = arena.slice::<u64>(2 * CHUNK_BYTES / 8).unwrap();
    slice.iter_mut().enumerate().for_each(|(i, value)| *value = pattern(i));
    let page = page_size_bytes();
    let guard = VirtRange::new(slice.range().start + 5 * page, page);
    let constant = VirtRange::new(slice.range().start + CHUNK_BYTES, page);
    // SAFETY: no thread uses the guard, or writes to the constant page.
    unsafe {
        arena.protect(guard, Prot::NONE).unwrap();
        arena.protect(constant, Prot::READ).unwrap();
    }
    for round in 0..3u64 {
        let frozen = freeze(&arena);
        slice[3] = round;
        let view = frozen.slice(&slice);
        let is_right = |&(i, &value): &(usize, &u64)| i == 3 || value == pattern(i);
        assert!(
            view.iter().enumerate().all(|pair| is_right(&pair)),
            "the view shows guarded memory"
        );
        assert_eq!(view[3], if round == 0 { pattern(3) } else { round - 1 });
        // SAFETY: no other thread uses the arena.
        unsafe { frozen.thaw_exclusive() }.unwrap();
    }
    // SAFETY: it was writable before.
    unsafe { arena.protect(guard, Prot::RW) }.unwrap();
    assert!(slice.iter().enumerate().all(|(i, &value)| i == 3 || value == pattern(i)));
}

#[test]
fn nobody_has_neither_userfaultfd_nor_a_tmpfs() {
    if !is_nobody() {
        return;
    }
    // SAFETY: asks for the user of this process.
    assert_eq!(unsafe { libc::geteuid() }, NOBODY);
    let refused = cowslip_sys::uffd::open().unwrap_err();
    assert_eq!(refused, cowslip_sys::Errno::PERM);
    let arena = arena(8);
    assert!(matches!(arena.pages(), Pages::HugeMemfd | Pages::Base), "{}", arena.pages());
    let frozen = freeze(&arena);
    assert_eq!(frozen.method(), FreezeMethod::WithoutUserfaultfd);
    assert_eq!(arena.metrics().plain_freezes, 1);
}

#[test]
fn an_unprivileged_user_has_the_same_contract() {
    if is_nobody() {
        return;
    }
    // SAFETY: asks for the user of this process.
    if unsafe { libc::geteuid() } != 0 {
        skip("root", "only root can become another user; run the tests as that user instead");
        return;
    }
    let setting = "/proc/sys/vm/unprivileged_userfaultfd";
    let _setting = match Setting::read(setting).as_deref() {
        Some("1") => match Setting::change(setting, "0") {
            Some(changed) => Some(changed),
            None => {
                skip("root", "vm.unprivileged_userfaultfd is 1 and cannot be changed");
                return;
            }
        },
        _ => None,
    };
    let place = std::env::temp_dir().join(format!("cowslip-nobody-{}", std::process::id()));
    std::fs::create_dir(&place).unwrap();
    let copy = place.join("plain");
    // Not by this process: a child that another test starts meanwhile would have the new file open for writing.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status();
    assert!(copied.unwrap().success());
    for path in [&place, &copy] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let run = Command::new(&copy)
        .args(["--test-threads=2"])
        .env(AS_NOBODY, "1")
        .current_dir(&place)
        .gid(NOBODY)
        .uid(NOBODY)
        .output();
    std::fs::remove_dir_all(&place).unwrap();
    let run = run.unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("test nobody_has_neither_userfaultfd_nor_a_tmpfs ... ok"), "{said}");
}

#[test]
fn the_process_groups_are_dropped_too() {
    if !is_nobody() {
        return;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    };
    assert_eq!(field("CapEff"), "0000000000000000");
    assert_eq!(field("Groups"), "");
}

#[test]
fn drop_is_enough_to_end_a_view() {
    let arena = arena(16);
    let counters = Counters::new(&arena, ByteCount::mib(2));
    fill(&counters, 5);
    drop(freeze(&arena));
    // SAFETY: no other thread uses the arena.
    unsafe { arena.thaw_exclusive() }.unwrap();
    assert!(holds(&counters, 5));
    drop(freeze(&arena));
}

/// The writers are not held off: memory still leaves, live and frozen, where it lies.
#[test]
fn i1_memory_leaves_while_threads_write_to_it() {
    let _watchdog = Watchdog::start("leaving without userfaultfd");
    let arena = arena(64);
    let counters = Counters::new(&arena, ByteCount::mib(16));
    let range = counters.slice().range();
    let writers = Writers::start(&counters, 2);
    for from in (range.start..range.end()).step_by(2 * CHUNK_BYTES) {
        let before = counters.sum();
        eventually("the writers write", || counters.sum() > before);
        // A chunk, then nothing, then a page.
        let page = VirtRange::new(from + CHUNK_BYTES + page_size_bytes(), page_size_bytes());
        for part in [VirtRange::new(from, CHUNK_BYTES), page] {
            // SAFETY: memory that the arena has allocated.
            unsafe { arena.raw().detach(part, cowslip::raw::Departure::DirectIo) }.unwrap();
        }
    }
    let left = arena.metrics().left_bytes;
    assert_eq!(left, (range.len / 2 + range.len / CHUNK_BYTES / 2 * page_size_bytes()) as u64);
    let view = freeze(&arena);
    let frozen = VirtRange::new(range.start + CHUNK_BYTES, page_size_bytes());
    // SAFETY: as above.
    unsafe { arena.raw().detach(frozen, cowslip::raw::Departure::DirectIo) }.unwrap();
    assert!(
        arena.raw().parts(frozen).iter().all(|(_, usage, _)| *usage == cowslip::raw::Usage::Left)
    );
    drop(view);
    let written = writers.stop();
    assert_eq!(counters.sum(), written, "no update is lost");
    // Memory that left reads as zeroes once the program has dropped it, not as the content of the
    // file.
    let first = VirtRange::new(range.start, CHUNK_BYTES);
    // SAFETY: it is not used any more.
    unsafe { arena.discard(first) }.unwrap();
    assert!((0..CHUNK_BYTES / 8).all(|i| counters.at(i).load(Relaxed) == 0));
}

/// Words of memory that an arena has allocated.
fn words(range: VirtRange) -> &'static [AtomicU64] {
    // SAFETY: every caller keeps the range mapped while it uses the words, and uses no more than
    // it.
    unsafe { std::slice::from_raw_parts(range.start as *const AtomicU64, range.len / 8) }
}

/// The child reads memory that left at its place in the file, whatever its parent does with the
/// place.
#[test]
fn i2_the_place_of_what_left_is_not_handed_out_again() {
    let _watchdog = Watchdog::start("the place of what left");
    let page = page_size_bytes();
    for (discarded, replaced) in [(false, false), (true, false), (false, true)] {
        let arena = arena(16);
        let range = arena.allocate(ByteCount::mib(4), Prot::RW).unwrap();
        words(range).iter().for_each(|word| word.store(7, Relaxed));
        for part in
            [VirtRange::new(range.start, CHUNK_BYTES), VirtRange::new(range.end() - page, page)]
        {
            // SAFETY: memory that the arena has allocated.
            unsafe { arena.raw().detach(part, cowslip::raw::Departure::ProcMem) }.unwrap();
            assert_eq!(arena.raw().parts(part)[0].1, cowslip::raw::Usage::Left);
        }
        let (mut told, mut tell) = std::io::pipe().unwrap();
        let child = fork_child(&[&arena], || {
            told.read_exact(&mut [0]).is_ok()
                && words(range).iter().all(|word| word.load(Relaxed) == 7)
        });
        // SAFETY: only the child uses it, which has mappings of its own.
        unsafe {
            arena.protect(VirtRange::new(range.start, page), Prot::READ).unwrap();
            if discarded {
                arena.discard(range).unwrap();
            }
            if replaced {
                let over = || cowslip_sys::memory::map_anonymous(range, Prot::RW).ok();
                arena.raw().replace_mapping(range, over).unwrap();
            }
            arena.raw().unmap(range).unwrap();
        }
        for len in [4 << 10, 1 << 20, 2 << 20, 4 << 20] {
            let next = arena.allocate(ByteCount(len), Prot::RW).unwrap();
            words(next).iter().for_each(|word| word.store(8, Relaxed));
        }
        tell.write_all(&[0]).unwrap();
        assert_eq!(status_of(child.unwrap()), 0, "discarded {discarded}, replaced {replaced}");
    }
}

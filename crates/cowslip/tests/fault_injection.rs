#![allow(unsafe_code)]
//! Every system call of a freeze, a thaw and a fork fails once, at each place where it is made, with each errno.
//! Afterwards nothing is lost or changed, no thread hangs, and everything works again.
//!
//! Failpoints apply to the whole process: one test at a time.

mod support;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use cowslip::image::{Image, RestoreOptions, Restored, Strategy};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ErrorKind, FreezeMethod, Inherit, Pages, Place, Prot, Template, freeze_all};
use cowslip_sys::Errno;
use cowslip_sys::failpoints::{Injection, Op, fail};
use support::images::{Folder, patterned, proceed, saved, words};
use support::world::{World, explains_itself};
use support::{
    Counters, PATIENCE, Watchdog, Writers, alone, errnos_of, eventually, fork_child, next_call,
    status_of,
};

const ERRNOS: [Errno; 5] = [Errno::NOMEM, Errno::PERM, Errno::AGAIN, Errno::EXIST, Errno::INVAL];

/// The errno of the failing call: each place gets one, because errors are seldom handled by number.
fn errno_of(errnos: &[Errno], pass: u32) -> Errno {
    errnos[pass as usize % errnos.len()]
}

const ALWAYS: u32 = u32::MAX;

/// Makes the first, second, … call of `op` fail during `act`, until there is no such call. Returns
/// the index of that missing call, which is at least the number of calls.
fn at_each_call(op: Op, errnos: &[Errno], mut act: impl FnMut(&World)) -> u32 {
    let mut pass = 0;
    loop {
        let world = World::new();
        let rule = fail(op, pass, 1, errno_of(errnos, pass));
        act(&world);
        let has_failed = rule.is_spent();
        drop(rule);
        world.check();
        if !has_failed {
            return pass;
        }
        pass = next_call(pass);
    }
}

/// Reserves `pwrite` for copies, if it is the call to fail: no part of the file can be mapped for them.
fn without_window(op: Op) -> Option<Injection> {
    (op == Op::Pwrite).then(|| fail(Op::Madvise, 0, ALWAYS, Errno::NOMEM))
}

/// Like [`at_each_call`], from the moment that the thaw begins.
fn at_each_call_of_a_thaw(op: Op, errnos: &[Errno]) -> u32 {
    let mut pass = 0;
    loop {
        let world = World::new();
        // Otherwise hot chunks would not stay frozen.
        world.arenas().iter().for_each(|arena| arena.raw().pause_thaw());
        let views = freeze_all(&world.arenas()).unwrap();
        world.wait_written();
        let no_window = without_window(op);
        let rule = fail(op, pass, 1, errno_of(errnos, pass));
        drop(views);
        world.arenas().iter().for_each(|arena| arena.raw().resume_thaw());
        for arena in world.arenas() {
            assert!(arena.wait_live(PATIENCE), "tried again");
        }
        let has_failed = rule.is_spent();
        drop((rule, no_window));
        world.check();
        if !has_failed {
            return pass;
        }
        pass = next_call(pass);
    }
}

/// Like [`at_each_call`], from the moment that hot chunks may be moved out of memory that a view
/// shows.
fn at_each_call_of_a_move(op: Op, errnos: &[Errno]) -> u32 {
    let mut pass = 0;
    loop {
        let world = World::new();
        world.arenas().iter().for_each(|arena| arena.raw().pause_thaw());
        let views = freeze_all(&world.arenas()).unwrap();
        let no_window = without_window(op);
        let rule = fail(op, pass, 1, errno_of(errnos, pass));
        world.arenas().iter().for_each(|arena| arena.raw().resume_thaw());
        // A move that fails half-way is thawed in its new place.
        let moved = |metrics: cowslip::Metrics| metrics.moved_chunks + metrics.thawed_chunks;
        let is_moved = || world.arenas().iter().all(|arena| moved(arena.metrics()) > 0);
        eventually("hot chunks are moved, at the second attempt at last", is_moved);
        let has_failed = rule.is_spent();
        drop((rule, no_window));
        world.judge(Ok(views));
        world.check();
        if !has_failed {
            return pass;
        }
        pass = next_call(pass);
    }
}

fn move_at_each(op: Op, errnos: &[Errno], at_least: u32) {
    let _alone = alone();
    let _watchdog = Watchdog::start("a move");
    let calls = at_each_call_of_a_move(op, errnos);
    assert!(calls >= at_least, "{op:?}: {calls} calls of {at_least}");
}

fn freeze_at_each(op: Op, at_least: u32) {
    let _alone = alone();
    let _watchdog = Watchdog::start("a freeze");
    let calls = at_each_call(op, &ERRNOS[..3], |world| {
        world.judge(freeze_all(&world.arenas()));
        // Forks at once, while the failed freeze may still be undone.
        let _ = world.fork().inspect_err(explains_itself);
    });
    assert!(calls >= at_least, "{op:?}: {calls} calls of {at_least}");
}

fn fork_at_each(op: Op, at_least: u32) {
    let _alone = alone();
    let _watchdog = Watchdog::start("a fork");
    let calls = at_each_call(op, &ERRNOS[..3], |world| {
        let _ = world.fork().inspect_err(explains_itself);
        let _ = world.fork().inspect_err(explains_itself);
    });
    assert!(calls >= at_least, "{op:?}: {calls} calls of {at_least}");
}

fn thaw_at_each(op: Op, errnos: &[Errno], at_least: u32) {
    let _alone = alone();
    let _watchdog = Watchdog::start("a thaw");
    // A thaw handles some errnos differently.
    let rounds = errnos_of(errnos).len().min(2);
    for round in 0..rounds {
        let errnos = [&errnos[round..], &errnos[..round]].concat();
        let calls = at_each_call_of_a_thaw(op, &errnos);
        assert!(calls >= at_least, "{op:?}: {calls} calls of {at_least}");
    }
}

#[test]
fn freeze_userfaultfd_opens() {
    freeze_at_each(Op::UffdOpen, 2);
}

#[test]
fn freeze_registers() {
    freeze_at_each(Op::UffdRegister, 5);
}

#[test]
fn freeze_moves() {
    freeze_at_each(Op::Mremap, 6);
}

#[test]
fn freeze_maps() {
    freeze_at_each(Op::Mmap, 12);
}

#[test]
fn freeze_wakes() {
    freeze_at_each(Op::UffdWake, 2);
    freeze_at_each(Op::TaskStart, 1);
}

#[test]
fn freeze_protects_and_advises() {
    freeze_at_each(Op::Mprotect, 2);
    freeze_at_each(Op::Madvise, 2);
}

#[test]
fn freeze_makes_files() {
    freeze_at_each(Op::MemfileOpen, 2);
}

#[test]
fn fork_moves_and_maps() {
    fork_at_each(Op::Mremap, 6);
    fork_at_each(Op::Mmap, 12);
}

#[test]
fn fork_advises() {
    fork_at_each(Op::Madvise, 2);
}

#[test]
fn fork_opens_and_registers() {
    fork_at_each(Op::UffdOpen, 2);
    fork_at_each(Op::UffdRegister, 7);
    fork_at_each(Op::MemfileOpen, 2);
}

#[test]
fn fork_watches_its_child() {
    fork_at_each(Op::PidfdOpen, 2);
}

#[test]
fn thaw_registers_and_moves() {
    thaw_at_each(Op::UffdRegister, &ERRNOS, 4);
    thaw_at_each(Op::Mremap, &ERRNOS, 4);
}

#[test]
fn thaw_scans() {
    thaw_at_each(Op::PagemapScan, &ERRNOS, 7);
}

#[test]
fn thaw_writes() {
    thaw_at_each(Op::Pwrite, &[Errno::NOSPC, Errno::NOMEM], 1);
}

#[test]
fn thaw_maps() {
    thaw_at_each(Op::Mmap, &ERRNOS, 7);
}

#[test]
fn thaw_wakes_and_advises() {
    thaw_at_each(Op::UffdWake, &ERRNOS, 2);
    thaw_at_each(Op::Madvise, &ERRNOS, 2);
}

#[test]
fn move_opens_a_file_and_maps() {
    move_at_each(Op::MemfileOpen, &ERRNOS, 2);
    move_at_each(Op::Mmap, &ERRNOS, 4);
}

#[test]
fn move_registers_and_moves() {
    move_at_each(Op::UffdRegister, &ERRNOS, 2);
    move_at_each(Op::Mremap, &ERRNOS, 2);
    move_at_each(Op::UffdWake, &ERRNOS, 2);
}

#[test]
fn move_scans_and_writes() {
    move_at_each(Op::PagemapScan, &ERRNOS, 4);
    move_at_each(Op::Pwrite, &[Errno::NOSPC, Errno::NOMEM], 2);
    move_at_each(Op::Madvise, &ERRNOS, 2);
}

#[test]
fn i4_what_cannot_be_thawed_stays_frozen_readable_and_writable() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a thaw that fails all the time");
    for (op, errno) in [
        (Op::Pwrite, Errno::NOSPC),
        (Op::Mmap, Errno::NOMEM),
        (Op::PagemapScan, Errno::NOMEM),
        (Op::Mremap, Errno::NOMEM),
        (Op::UffdRegister, Errno::NOMEM),
    ] {
        let arena = Arena::new(ByteCount::mib(16)).unwrap();
        let counters = Counters::new(&arena, ByteCount::mib(4));
        let writers = Writers::start(&counters, 2);
        // Otherwise hot chunks would not stay frozen.
        arena.raw().pause_thaw();
        let frozen = arena.freeze().unwrap();
        let before = counters.sum();
        eventually("the writers write", || counters.sum() > before + 1000);
        let rule = (fail(op, 0, ALWAYS, errno), without_window(op));
        drop(frozen);
        arena.raw().resume_thaw();
        eventually("three attempts", || arena.metrics().failed_thaw_chunks >= 3);
        let metrics = arena.metrics();
        assert!(metrics.frozen_chunks > 0, "{op:?}");
        assert_eq!(metrics.last_thaw_errno, errno.raw_os_error() as u64, "{op:?}");
        let before = counters.sum();
        eventually("the writers go on", || counters.sum() > before + 1000);
        assert!(arena.freeze().is_err(), "{op:?}");
        drop(rule);
        assert!(arena.wait_live(PATIENCE), "{op:?}: thawed when it can be");
        let written = writers.stop();
        assert_eq!(counters.sum(), written, "{op:?}");
    }
}

/// Memory dropped while frozen, with a guard page in it and values on both sides.
struct Dropped {
    arena: Arena,
    counters: Counters,
    guard: VirtRange,
}

impl Dropped {
    fn new() -> Self {
        let arena = Arena::new(ByteCount::mib(8)).unwrap();
        let counters = Counters::new(&arena, ByteCount(CHUNK_BYTES as u64));
        (0..counters.len()).for_each(|i| counters.at(i).store(7, Relaxed));
        let page = page_size_bytes();
        let guard = VirtRange::new(counters.slice().range().start + 100 * page, page);
        Self { arena, counters, guard }
    }

    fn guarded(&self) -> std::ops::Range<usize> {
        let first = (self.guard.start - self.counters.slice().range().start) / 8;
        first..first + self.guard.len / 8
    }

    fn drop_all(&self) {
        // SAFETY: no other thread uses the counters yet.
        unsafe { self.arena.discard(self.counters.slice().range()) }.unwrap();
    }

    fn set_guard(&self, prot: Prot) {
        // SAFETY: the writers avoid the guard.
        unsafe { self.arena.protect(self.guard, prot) }.unwrap();
    }
}

#[test]
fn i5_dropped_memory_is_whole_after_a_thaw_that_failed_half_way() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a thaw of dropped memory");
    let ops = [Op::Mmap, Op::Madvise, Op::Pwrite, Op::UffdRegister, Op::Mremap];
    for op in ops.into_iter().chain([Op::Fallocate]) {
        for pass in 0.. {
            let memory = Dropped::new();
            let frozen = memory.arena.freeze().unwrap();
            memory.drop_all();
            memory.counters.at(memory.guarded().start).store(11, Relaxed);
            memory.set_guard(Prot::NONE);
            let writers = Writers::start_avoiding(&memory.counters, 2, memory.guarded());
            assert!(frozen.slice(memory.counters.slice()).iter().all(|&value| value == 7));
            let _no_window = without_window(op);
            let rule = fail(op, pass, 1, Errno::NOMEM);
            drop(frozen);
            assert!(memory.arena.wait_live(PATIENCE));
            let has_failed = rule.is_spent();
            drop(rule);
            let written = writers.stop();
            memory.set_guard(Prot::RW);
            assert_eq!(memory.counters.sum(), written + 11, "{op:?}, call {pass}");
            if !has_failed {
                assert!(pass > 0, "{op:?} is called");
                break;
            }
        }
    }
}

#[test]
fn i6_dropped_memory_can_be_touched_while_its_thaw_fails() {
    let _alone = alone();
    let _watchdog = Watchdog::start("dropped memory that cannot be thawed");
    let memory = Dropped::new();
    let frozen = memory.arena.freeze().unwrap();
    memory.drop_all();
    memory.counters.at(0).store(1, Relaxed);
    let rule = fail(Op::Pwrite, 0, ALWAYS, Errno::NOSPC);
    drop(frozen);
    eventually("three attempts", || memory.arena.metrics().failed_thaw_chunks >= 3);
    let (sender, receiver) = mpsc::channel();
    let toucher = std::thread::spawn({
        let counters = memory.counters.clone();
        move || {
            for i in (0..counters.len()).step_by(512) {
                counters.at(i).fetch_add(1, Relaxed);
            }
            sender.send(()).unwrap();
        }
    });
    let touched = receiver.recv_timeout(Duration::from_secs(10));
    drop(rule);
    toucher.join().unwrap();
    assert!(touched.is_ok(), "a store waited for a thaw that failed again and again");
    assert!(memory.arena.wait_live(PATIENCE));
    assert_eq!(memory.counters.sum(), 1 + (memory.counters.len() / 512) as u64);
}

#[test]
fn without_userfaultfd_it_maps_over() {
    let _alone = alone();
    let _watchdog = Watchdog::start("without userfaultfd");
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(2));
    let writers = Writers::start(&counters, 1);
    let rule = fail(Op::UffdOpen, 0, ALWAYS, Errno::PERM);
    let frozen = arena.freeze().unwrap();
    assert_eq!(frozen.method(), FreezeMethod::WithoutUserfaultfd);
    let child = fork_child(&[&arena], || true).unwrap();
    assert_eq!(status_of(child), 0);
    drop(frozen);
    assert_eq!(arena.freeze().unwrap_err().kind(), ErrorKind::Busy, "nothing thaws it");
    drop(rule);
    let frozen = arena.freeze_timeout(PATIENCE).expect("thawed once userfaultfd can be had");
    assert_eq!(frozen.method(), FreezeMethod::Userfaultfd);
    drop(frozen);
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
}

#[test]
fn without_a_tmpfs_a_memfd_and_without_that_an_error() {
    let _alone = alone();
    let rule = fail(Op::MemfileOpen, 0, 1, Errno::PERM);
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    assert!(rule.is_spent());
    assert!(matches!(arena.pages(), Pages::HugeMemfd | Pages::Base), "{}", arena.pages());
    let counters = Counters::new(&arena, ByteCount::mib(4));
    let writers = Writers::start(&counters, 1);
    for _ in 0..3 {
        drop(arena.freeze_timeout(PATIENCE).unwrap());
    }
    assert!(arena.wait_live(PATIENCE));
    let written = writers.stop();
    assert_eq!(counters.sum(), written);

    let _rule = fail(Op::MemfileOpen, 0, 2, Errno::PERM);
    let error = Arena::new(ByteCount::mib(8)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    explains_itself(&error);
}

#[test]
fn an_arena_is_made_or_not_at_each_call() {
    let _alone = alone();
    for op in [Op::Mmap, Op::Madvise, Op::MemfileOpen] {
        for pass in 0.. {
            let rule = fail(op, pass, 1, Errno::NOMEM);
            let arena = Arena::new(ByteCount::mib(8));
            match arena.and_then(|arena| arena.slice::<u64>(10)) {
                Ok(slice) => assert!(slice.iter().all(|&value| value == 0)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
                    explains_itself(&error);
                }
            }
            if !rule.is_spent() {
                break;
            }
        }
    }
}

/// A template of 4 MiB of ones, 2 MiB that clones share and 2 MiB that are fresh, and their ranges.
fn template(arena: &Arena) -> cowslip::Result<(Template, [VirtRange; 3])> {
    let slices = [2, 1, 1].map(|chunks| arena.slice::<u64>(chunks * CHUNK_BYTES / 8).unwrap());
    let ranges = slices.each_ref().map(|slice| slice.range());
    for mut slice in slices {
        slice.fill(1);
        // Stays allocated as long as the arena exists.
        std::mem::forget(slice);
    }
    let frozen = arena.freeze_timeout(PATIENCE)?;
    let declared = frozen.template().region(ranges[1], Inherit::Shared);
    Ok((declared.region(ranges[2], Inherit::Fresh).build()?, ranges))
}

#[test]
fn a_template_is_made_and_mapped_or_not_at_each_call() {
    let _alone = alone();
    let _watchdog = Watchdog::start("templates");
    for op in [Op::Mmap, Op::MemfileOpen, Op::Pwrite] {
        for pass in 0.. {
            let arena = Arena::new(ByteCount::mib(16)).unwrap();
            let has_service = arena.raw().start_service();
            let rule = fail(op, pass, 1, Errno::NOMEM);
            let made = template(&arena)
                .and_then(|(template, ranges)| Ok((template.map(Place::Anywhere)?, ranges)));
            let has_failed = rule.is_spent();
            drop(rule);
            match made {
                Ok((clone, ranges)) => {
                    assert!(clone.values::<u64>(ranges[0]).iter().all(|&word| word == 1));
                }
                Err(error) => {
                    assert!(has_failed);
                    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
                    explains_itself(&error);
                }
            }
            assert!(!has_service || arena.wait_live(PATIENCE), "nothing keeps the base");
            if !has_failed {
                break;
            }
        }
    }
}

#[test]
fn a_reset_is_whole_or_is_whole_the_next_time() {
    let _alone = alone();
    let _watchdog = Watchdog::start("resets");
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let (template, [copied, shared, fresh]) = template(&arena).unwrap();
    let check_with = |op: Op, pass: u32, times: u32, errno: Errno| {
        let mut clone = template.map(Place::Anywhere).unwrap();
        let mut has_failed = false;
        for round in 0..3 {
            clone.values_mut::<u64>(copied)[CHUNK_BYTES / 8..].fill(2);
            clone.values_mut::<u64>(fresh).fill(3);
            clone.shared_words(shared)[9].store(round, Relaxed);
            let rule = fail(op, pass, times, errno);
            let reset = clone.reset();
            has_failed |= rule.is_spent();
            drop(rule);
            if let Err(error) = reset {
                explains_itself(&error);
                clone.reset().unwrap();
            }
            assert!(clone.values::<u64>(copied).iter().all(|&word| word == 1), "{op:?} {errno}");
            assert!(clone.values::<u64>(fresh).iter().all(|&word| word == 0), "{op:?} {errno}");
            assert_eq!(clone.shared_words(shared)[9].load(Relaxed), round);
        }
        has_failed
    };
    for op in [Op::PagemapScan, Op::ProcessMadvise, Op::PidfdOpen, Op::Mmap] {
        let mut pass = 0;
        while check_with(op, pass, 1, errno_of(&ERRNOS, pass)) {
            pass = next_call(pass);
        }
    }
    // Kernels that lack the one or the other: mapping anew gives the same result.
    check_with(Op::PagemapScan, 0, ALWAYS, Errno::NOTTY);
    check_with(Op::ProcessMadvise, 0, ALWAYS, Errno::INVAL);
    // Neither way works: an error, and all is well as soon as one of them works again.
    let scan = fail(Op::PagemapScan, 0, ALWAYS, Errno::NOTTY);
    check_with(Op::Mmap, 0, 1, Errno::NOMEM);
    drop(scan);
}

/// Memory leaves the arena, live and frozen, while threads write to it, or stays in it.
#[test]
fn leaving_the_arena_fails_at_each_step() {
    let _alone = alone();
    let _watchdog = Watchdog::start("leaving");
    let ops = [Op::Mmap, Op::Mprotect, Op::Mremap, Op::UffdRegister, Op::UffdWriteProtect];
    for op in ops.into_iter().chain([Op::UffdUnregister, Op::UffdWake, Op::Fallocate]) {
        at_each_call(op, &[Errno::NOMEM], |world| {
            let range = world.counters[0].slice().range();
            let part = VirtRange::new(range.start + 3 * page_size_bytes(), range.len / 2);
            // SAFETY: the service thread runs.
            let leave = || {
                // SAFETY: there are no references into the part.
                unsafe { world.first.raw().detach(part, cowslip::raw::Departure::Advice) }
                    .inspect_err(explains_itself)
            };
            let Ok(views) = freeze_all(&world.arenas()) else { return };
            // The call that failed may have been one that starts the service.
            eventually("its service starts", || world.first.raw().start_service());
            let _ = leave();
            drop(views);
            let _ = leave();
            for arena in world.arenas() {
                eventually("its service starts", || arena.raw().start_service());
            }
        });
    }
}

/// True if no service thread of this process runs.
fn services_sleep() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats.filter(|stat| stat.contains("(cowslip)")).all(|stat| stat.contains("(cowslip) S"))
}

/// A view that cannot be mapped ends a freeze of two arenas, both of which are frozen by then.
#[test]
fn arenas_thaw_by_themselves_after_a_freeze_without_a_view() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a freeze without a view");
    let mut pass = 0;
    loop {
        let world = World::new();
        for arena in world.arenas() {
            eventually("its service starts", || arena.raw().start_service());
        }
        eventually("they rest", services_sleep);
        let rule = fail(Op::Mprotect, pass, 1, Errno::NOMEM);
        world.judge(freeze_all(&world.arenas()));
        let has_failed = rule.is_spent();
        drop(rule);
        world.check();
        if !has_failed {
            break;
        }
        pass = next_call(pass);
    }
}

#[test]
fn a_mapped_image_is_whole_or_refused_whatever_fails() {
    let _alone = alone();
    let folder = Folder::new("errno-mapped");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let slice = patterned(&arena);
    let _guard = arena.allocate(ByteCount::mib(1), Prot::NONE).unwrap();
    saved(&arena.freeze().unwrap(), &path);
    let image = Image::open(&path).unwrap();
    let offset_bytes = slice.range().start - arena.range().start;
    for op in [Op::Mmap, Op::Madvise, Op::Mprotect] {
        let mut failures = 0;
        for pass in 0.. {
            let rule = fail(op, pass, 1, Errno::NOMEM);
            match image.map(0, Place::Anywhere) {
                Ok(memory) => {
                    let start = memory.range().start + offset_bytes;
                    // SAFETY: allocated when it was saved, readable; no thread writes to it.
                    let mapped =
                        unsafe { std::slice::from_raw_parts(start as *const u64, slice.len()) };
                    assert!(mapped == &slice[..], "{op:?} {pass}");
                }
                Err(error) => {
                    assert!(rule.is_spent(), "{error}");
                    explains_itself(&error);
                    failures += 1;
                }
            }
            if !rule.is_spent() {
                break;
            }
        }
        // Advice about huge pages is refused without harm.
        assert_eq!(failures > 0, op != Op::Madvise, "{op:?}");
    }
}

/// Every call of a restore fails once: all content is restored as saved, or an error gives the
/// reason.
#[test]
fn a_restore_fails_at_each_step() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a restore");
    let folder = Folder::new("errno-restore");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let slice = patterned(&arena);
    let (content, range) = (slice.to_vec(), slice.range());
    saved(&arena.freeze().unwrap(), &path);
    let image = Image::open(&path).unwrap();
    let ops = [Op::MemfileOpen, Op::Mmap, Op::Mprotect, Op::Madvise, Op::Pwrite];
    let mut failures = 0;
    for op in ops.into_iter().chain([Op::UffdOpen, Op::UffdRegister, Op::UffdWake]) {
        for strategy in [Strategy::Hybrid, Strategy::Eager] {
            for pass in 0.. {
                let rule = fail(op, pass, 1, Errno::NOMEM);
                let options = RestoreOptions { strategy, ..RestoreOptions::default() };
                let restored = image.restore(0, &options, &mut proceed);
                let is_right = |restored: &Restored| {
                    words(restored.arena(), range, &arena)[..content.len()] == content
                };
                match &restored {
                    Ok(restored) => assert!(is_right(restored), "{op:?} {pass} {strategy}"),
                    Err(error) => explains_itself(error),
                }
                assert!(restored.is_err() || restored.unwrap().wait(PATIENCE).unwrap());
                let has_failed = rule.is_spent();
                drop(rule);
                failures += u32::from(has_failed);
                if !has_failed {
                    break;
                }
            }
        }
    }
    assert!(failures > 40, "{failures}");
    let last = image.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    assert!(last.wait(PATIENCE).unwrap());
}

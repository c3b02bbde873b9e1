#![allow(unsafe_code)]
//! Arenas made from templates: usable at once, exact at every moment, and independent in the end.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use cowslip::image::{Image, RestoreOptions, SaveOptions, save};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ArenaSlice, Backing, ErrorKind, Inherit, Place, Prot, Template};
use cowslip_sys::OwnedFd;
use support::children::{Child, KINDS, wait_for_ever};
use support::images::{Folder, proceed};
use support::wait_unread;
use support::{
    Counters, PATIENCE, Scatter, Watchdog, Writers, alone, eventually, fork_child,
    huge_mapped_bytes, pattern, scaled, skip, smaps_bytes, status_of,
};

const SIZE: ByteCount = ByteCount::mib(48);
const WORDS: usize = SIZE.0 as usize / 8;
const CHUNK_WORDS: usize = CHUNK_BYTES / 8;
/// By this time an allowed thaw has long begun.
const TOO_EARLY: Duration = Duration::from_millis(300);

/// With or without userfaultfd, on huge pages or on base pages.
type World = (bool, Backing);
const BORROWS: World = (true, Backing::Thp);
const COPIES: World = (false, Backing::Thp);

/// All worlds that are possible here.
fn worlds() -> Vec<World> {
    let has_userfaultfd = has_userfaultfd();
    if !has_userfaultfd {
        skip("userfaultfd", "nothing is borrowed without it: all is copied first");
    }
    let worlds = [BORROWS, (true, Backing::Base), COPIES, (false, Backing::Base)];
    worlds.into_iter().filter(|world| has_userfaultfd || !world.0).collect()
}

fn patterned(backing: Backing) -> (Arena, ArenaSlice<u64>) {
    let arena = Arena::builder(ByteCount::mib(64)).backing(backing).build().unwrap();
    let mut words = arena.slice::<u64>(WORDS).unwrap();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
    (arena, words)
}

fn is_pattern(words: &[u64]) -> bool {
    words.iter().enumerate().all(|(i, &word)| word == pattern(i))
}

fn restored(template: &Template, (uffd, backing): World) -> Arena {
    let arena = lazily_restored(template, (uffd, backing));
    // From here on it is copied.
    arena.wait_live(Duration::ZERO);
    arena
}

fn lazily_restored(template: &Template, (uffd, backing): World) -> Arena {
    let builder = template.arena_builder(Place::Anywhere).unwrap();
    template.restore(builder.backing(backing).userfaultfd(uffd)).unwrap()
}

fn adopted(template: &Template, arena: &Arena, words: &ArenaSlice<u64>) -> ArenaSlice<u64> {
    // SAFETY: no other code has the memory of an arena that was restored just now.
    unsafe { arena.adopt_slice(template.range_in(arena, words.value_range())) }.unwrap()
}

/// A lender, its words, its template, and an arena that borrows from it. `None`, with a message, if nothing is
/// borrowed.
fn borrowed() -> Option<(Arena, ArenaSlice<u64>, Template, Arena)> {
    let borrows = worlds().contains(&BORROWS);
    borrows.then(|| {
        let (source, words) = patterned(BORROWS.1);
        let template = source.freeze().unwrap().into_template().unwrap();
        let arena = restored(&template, BORROWS);
        (source, words, template, arena)
    })
}

fn has_userfaultfd() -> bool {
    let arena = Arena::new(ByteCount::mib(4)).unwrap();
    let _words = arena.slice::<u64>(512).unwrap();
    drop(arena.freeze().unwrap());
    arena.metrics().has_userfaultfd == 1
}

#[test]
fn i1_no_store_is_lost_while_it_is_copied() {
    let _alone = alone();
    let _watchdog = Watchdog::start("writers");
    for world in worlds() {
        for round in 0..scaled(6) {
            let (source, mut words) = patterned(world.1);
            words.fill(0);
            let template = source.freeze().unwrap().into_template().unwrap();
            let arena = restored(&template, world);
            let counters = Counters::restored(&arena, template.range_in(&arena, words.range()));
            let writers = Writers::start(&counters, 3);
            words.fill(u64::MAX);
            drop(template);
            assert!(arena.wait_live(PATIENCE), "{world:?}");
            let view = arena.freeze().unwrap();
            drop(view);
            let written = writers.stop();
            assert_eq!(counters.sum(), written, "{world:?}, round {round}");
            assert!(words.iter().all(|&word| word == u64::MAX), "the lender's is its own");
        }
    }
}

#[test]
fn it_ends_as_an_ordinary_arena_on_huge_pages_and_the_template_is_free() {
    let _alone = alone();
    let _watchdog = Watchdog::start("an arena of its own");
    for world in worlds() {
        let (source, words) = patterned(world.1);
        let template = source.freeze().unwrap().into_template().unwrap();
        let arena = restored(&template, world);
        let mut mine = adopted(&template, &arena, &words);
        (mine[3], mine[5 * CHUNK_WORDS]) = (1, 2);
        mine[7 * CHUNK_WORDS..9 * CHUNK_WORDS].fill(3);
        assert!(arena.wait_live(PATIENCE));
        drop(template);
        assert!(source.wait_live(PATIENCE) || !world.0, "nobody reads the lender's base");
        let is_right = |i: usize| match i {
            3 => 1,
            i if i == 5 * CHUNK_WORDS => 2,
            i if (7 * CHUNK_WORDS..9 * CHUNK_WORDS).contains(&i) => 3,
            i => pattern(i),
        };
        assert!(mine.iter().enumerate().all(|(i, &word)| word == is_right(i)), "{world:?}");
        assert!(is_pattern(&words));
        assert_eq!(smaps_bytes(mine.range(), "Anonymous"), 0, "{world:?}");
        if arena.pages().is_huge() {
            assert_eq!(huge_mapped_bytes(mine.range()), SIZE.0, "{world:?}");
        } else if world.1 == Backing::Thp {
            skip("huge", "this process gets no huge pages");
        }
        assert_eq!(arena.metrics().frozen_chunks, 0);
        // Like any other: it allocates memory, is frozen and thawed.
        let more = arena.slice::<u64>(CHUNK_WORDS).unwrap();
        assert!(more.iter().all(|&word| word == 0));
        let view = arena.freeze().unwrap();
        mine[0] = 9;
        assert_eq!(view.slice(&mine)[0], pattern(0));
    }
}

#[test]
fn i3_a_freeze_at_any_time_has_what_was_written_before_and_nothing_since() {
    let _alone = alone();
    let _watchdog = Watchdog::start("freezes");
    let folder = Folder::new("template-restore");
    for world in worlds() {
        for round in 0..scaled(8) {
            let (source, words) = patterned(world.1);
            let template = source.freeze().unwrap().into_template().unwrap();
            let arena = restored(&template, world);
            let mut mine = adopted(&template, &arena, &words);
            let mut expected: Vec<u64> = (0..WORDS).map(pattern).collect();
            let mut scatter = Scatter(0xf00d + round as u64);
            for _ in 0..round * 400 {
                let i = scatter.next() as usize % WORDS;
                (mine[i], expected[i]) = (i as u64, i as u64);
            }
            let view = arena.freeze().unwrap();
            mine.fill(7);
            assert!(view.slice(&mine) == &expected[..], "{world:?}, round {round}");
            let path = folder.file("image");
            save(&[&view], &path, &SaveOptions::default(), &mut proceed).unwrap();
            drop(view);
            let image = Image::open(&path).unwrap();
            let again = image.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
            let place = VirtRange::new(
                again.arena().range().start + (mine.range().start - arena.range().start),
                mine.value_range().len,
            );
            // SAFETY: no other code has it.
            let saved = unsafe { again.arena().adopt_slice::<u64>(place) }.unwrap();
            assert!(saved[..] == expected[..], "{world:?}, round {round}");
            assert!(mine.iter().all(|&word| word == 7) && is_pattern(&words));
        }
    }
}

#[test]
fn i2_children_keep_what_they_were_forked_with_whatever_becomes_of_lender_and_parent() {
    let _alone = alone();
    let _watchdog = Watchdog::start("children");
    for world in worlds() {
        for (i, kind) in KINDS.into_iter().cycle().take(KINDS.len() * scaled(2).min(2)).enumerate()
        {
            let (source, mut words) = patterned(world.1);
            let template = source.freeze().unwrap().into_template().unwrap();
            let arena = restored(&template, world);
            let mut mine = adopted(&template, &arena, &words);
            mine[i] = 0;
            mine[WORDS - 1 - i] = 1;
            let (mut answers, theirs) = UnixStream::pair().unwrap();
            let range = mine.range();
            let child = Child::fork(&arena, kind, move || {
                // Waits until the parent has written everything. Without descriptors it looks at
                // once.
                let _ = (&theirs).read(&mut [0]);
                // SAFETY: the child's memory, which no thread in it writes.
                let mine = unsafe { std::slice::from_raw_parts(range.start as *const u64, WORDS) };
                mine.iter().enumerate().all(|(at, &word)| match at {
                    at if at == i => word == 0,
                    at if at == WORDS - 1 - i => word == 1,
                    at => word == pattern(at),
                })
            })
            .unwrap();
            mine.fill(5);
            drop(template);
            words.fill(6);
            if world.0 && !kind_ends(kind) {
                assert!(!wait_unread(&source, TOO_EARLY), "{kind:?} reads the lender's base");
            }
            let _ = answers.write_all(&[1]);
            assert!(child.ends_right(), "{world:?} {kind:?}");
            assert!(mine.iter().all(|&word| word == 5));
            assert!(words.iter().all(|&word| word == 6));
            if world.0 {
                assert!(arena.wait_live(PATIENCE) && source.wait_live(PATIENCE), "{kind:?}");
                assert!(mine.iter().all(|&word| word == 5));
            }
        }
    }
}

/// A child that does not wait to be told.
fn kind_ends(kind: support::children::Kind) -> bool {
    kind == support::children::Kind::ClosesAll
}

#[test]
fn nothing_is_copied_before_it_is_asked_for() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a lazy restore");
    for world in worlds().into_iter().filter(|world| world.0) {
        let (source, words) = patterned(world.1);
        let template = source.freeze().unwrap().into_template().unwrap();
        let arena = lazily_restored(&template, world);
        let mut mine = adopted(&template, &arena, &words);
        assert!(is_pattern(&mine));
        (0..WORDS).step_by(10 * CHUNK_WORDS).for_each(|i| mine[i] = !pattern(i));
        // Another freeze's readers do not make it copy either.
        let child = fork_child(&[&arena], || mine[0] == !pattern(0) && mine[1] == pattern(1));
        assert_eq!(status_of(child.unwrap()), 0, "{world:?}");
        std::thread::sleep(TOO_EARLY);
        assert_eq!(arena.metrics().thawed_chunks, 0, "{world:?}");
        assert!(arena.metrics().frozen_chunks > 0, "{world:?}");
        assert!(arena.wait_live(PATIENCE));
        assert_eq!(arena.metrics().frozen_chunks, 0, "{world:?}");
        drop((source, template, words));
        (0..WORDS).step_by(10 * CHUNK_WORDS).for_each(|i| mine[i] = pattern(i));
        assert!(is_pattern(&mine), "{world:?}");
    }
}

#[test]
fn a_parent_need_not_wait_for_its_children_to_be_on_its_own() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a long child");
    let Some((_source, words, template, arena)) = borrowed() else { return };
    arena.raw().pause_thaw();
    let borrowed = arena.metrics().frozen_chunks;
    let pid = fork_child(&[&arena], || wait_for_ever()).unwrap();
    let read_by_the_child = arena.metrics().frozen_chunks - borrowed;
    arena.raw().resume_thaw();
    let mine = adopted(&template, &arena, &words);
    let left = || arena.metrics().frozen_chunks;
    eventually("what was borrowed is the parent's own", || left() == read_by_the_child);
    support::children::kill(pid);
    status_of(pid);
    assert!(arena.wait_live(PATIENCE) && is_pattern(&mine));
}

#[test]
fn i5_protections_releases_and_discards_hold_while_it_is_copied() {
    let _alone = alone();
    let _watchdog = Watchdog::start("protections");
    let page = page_size_bytes();
    for world in worlds() {
        for hold in [false, true] {
            let (source, words) = patterned(world.1);
            let at = |arena: VirtRange, chunk: usize, pages: usize| {
                VirtRange::new(arena.start + chunk * CHUNK_BYTES, pages * page)
            };
            // SAFETY: there are no references into the protected parts.
            unsafe {
                source.protect(at(words.range(), 1, 3), Prot::NONE).unwrap();
                source.protect(at(words.range(), 2, 512), Prot::READ).unwrap();
            }
            let template = source.freeze().unwrap().into_template().unwrap();
            let arena = restored(&template, world);
            let range = template.range_in(&arena, words.range());
            // Once with all of it borrowed, once while it is copied.
            let held = hold.then(|| arena.hold_for_io(range).unwrap());
            // SAFETY: only this test uses the memory, through pointers.
            unsafe {
                let word = |i: usize| (range.start as *mut u64).add(i);
                assert_eq!(arena.raw().parts(at(range, 1, 3))[0].2, Prot::NONE);
                assert_eq!(arena.raw().parts(at(range, 2, 512))[0].2, Prot::READ);
                arena.protect(at(range, 1, 3), Prot::RW).unwrap();
                *word(CHUNK_WORDS) = 1;
                arena.protect(at(range, 1, 1), Prot::READ).unwrap();
                // A whole chunk, some pages, read-only pages, and freed memory.
                *word(4 * CHUNK_WORDS) = 1;
                arena.discard(at(range, 4, 512)).unwrap();
                arena.discard(at(range, 5, 9)).unwrap();
                arena.discard(at(range, 2, 2)).unwrap();
                arena.release(at(range, 7, 512)).unwrap();
                arena.release(at(range, 8, 5)).unwrap();
                drop(held);
                let expected = |i: usize| match (i / CHUNK_WORDS, i % CHUNK_WORDS * 8 / page) {
                    (1, 0) if i == CHUNK_WORDS => 1,
                    (4, _) | (5, 0..9) | (2, 0..2) => 0,
                    _ => pattern(i),
                };
                let is_there = |i: &usize| {
                    let place = (i / CHUNK_WORDS, i % CHUNK_WORDS * 8 / page);
                    !matches!(place, (7, _) | (8, 0..5))
                };
                let is_right = || (0..WORDS).filter(is_there).all(|i| *word(i) == expected(i));
                assert!(is_right(), "{world:?}");
                assert!(arena.wait_live(PATIENCE));
                assert!(is_right(), "{world:?}, afterwards");
                assert_eq!(arena.raw().parts(at(range, 1, 1))[0].2, Prot::READ);
                let fresh = arena.allocate(ByteCount(6 * CHUNK_BYTES as u64), Prot::RW).unwrap();
                let fresh = std::slice::from_raw_parts(fresh.start as *const u64, fresh.len / 8);
                assert!(fresh.iter().all(|&word| word == 0), "what is handed out is zeroes");
            }
            let clone = template.map(Place::Anywhere).unwrap();
            let (start, end) = (words.range().start, words.range().end());
            let rest = VirtRange::between(start + 9 * CHUNK_BYTES, end);
            let mut of_template = clone.values::<u64>(rest).iter().enumerate();
            let is_right = |(i, &word): (usize, &u64)| word == pattern(9 * CHUNK_WORDS + i);
            assert!(of_template.all(is_right), "the template is as it was");
        }
    }
}

#[test]
fn stores_and_discards_at_any_moment_are_there_in_the_end() {
    let _alone = alone();
    let _watchdog = Watchdog::start("stores and discards");
    for world in worlds() {
        for round in 0..scaled(12) {
            let (source, words) = patterned(world.1);
            let template = source.freeze().unwrap().into_template().unwrap();
            let arena = restored(&template, world);
            let mut mine = adopted(&template, &arena, &words);
            let range = mine.range();
            let mut expected: Vec<u64> = (0..WORDS).map(pattern).collect();
            let mut scatter = Scatter(0xd15c + round as u64);
            for step in 0..300 {
                let i = scatter.next() as usize % WORDS;
                (mine[i], expected[i]) = (step, step);
                if step % 8 == 0 {
                    let chunk = scatter.next() as usize % (WORDS / CHUNK_WORDS);
                    let gone = VirtRange::new(range.start + chunk * CHUNK_BYTES, CHUNK_BYTES);
                    // SAFETY: allocated, and no other code accesses it.
                    unsafe { arena.discard(gone) }.unwrap();
                    expected[chunk * CHUNK_WORDS..(chunk + 1) * CHUNK_WORDS].fill(0);
                }
            }
            assert!(arena.wait_live(PATIENCE), "{world:?}");
            assert!(mine[..] == expected[..], "{world:?}, round {round}");
        }
    }
}

#[test]
fn fresh_regions_are_zeroes_and_shared_ones_are_refused() {
    let _alone = alone();
    let _watchdog = Watchdog::start("regions");
    for world in worlds() {
        let (source, words) = patterned(world.1);
        let (page, range) = (page_size_bytes(), words.range());
        let whole = VirtRange::new(range.start + 2 * CHUNK_BYTES, CHUNK_BYTES);
        let part = VirtRange::new(range.start + 5 * CHUNK_BYTES + 3 * page, 2 * page);
        let builder = source.freeze().unwrap().template();
        let template =
            builder.region(whole, Inherit::Fresh).region(part, Inherit::Fresh).build().unwrap();
        let arena = restored(&template, world);
        let mine = adopted(&template, &arena, &words);
        let is_fresh = |i: usize| {
            let at = range.start + i * 8;
            whole.contains(at) || part.contains(at)
        };
        let is_right = |mine: &[u64]| {
            mine.iter()
                .enumerate()
                .all(|(i, &word)| word == if is_fresh(i) { 0 } else { pattern(i) })
        };
        assert!(is_right(&mine), "{world:?}");
        assert!(arena.wait_live(PATIENCE) && is_right(&mine), "{world:?}");
    }
    let (source, words) = patterned(Backing::Thp);
    let declared = source.freeze().unwrap().template().region(words.range(), Inherit::Shared);
    let template = declared.build().unwrap();
    let refused = template.restore(template.arena_builder(Place::Anywhere).unwrap());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_place_that_is_too_small_taken_or_of_hugetlb_is_refused() {
    let _alone = alone();
    let (source, words) = patterned(Backing::Thp);
    let template = source.freeze().unwrap().into_template().unwrap();
    let kind = |builder| template.restore(builder).unwrap_err().kind();
    assert_eq!(kind(Arena::builder(ByteCount::mib(2))), ErrorKind::Usage);
    assert_eq!(kind(template.arena_builder(Place::Original).unwrap()), ErrorKind::Busy);
    drop((words, source));
    let arena = template.restore(template.arena_builder(Place::Original).unwrap()).unwrap();
    let first = template.regions()[0].range().start as *const u64;
    // SAFETY: the arena exists, readable.
    assert_eq!(unsafe { *first }, pattern(0));
    drop(arena);
}

#[test]
fn it_cannot_be_frozen_while_memory_is_held_for_io_and_goes_on_afterwards() {
    let _alone = alone();
    let _watchdog = Watchdog::start("I/O");
    let Some((_source, words, template, arena)) = borrowed() else { return };
    let mine = adopted(&template, &arena, &words);
    let held = arena.hold_for_io(mine.range()).unwrap();
    let left = arena.metrics().frozen_chunks;
    assert_eq!(arena.freeze().unwrap_err().kind(), ErrorKind::Busy);
    assert!(is_pattern(&mine));
    assert_eq!(arena.metrics().frozen_chunks, left, "no frame changes meanwhile");
    drop(held);
    assert!(is_pattern(arena.freeze().unwrap().slice(&mine)));
}

#[test]
fn memory_leaves_the_arena_with_its_content_while_it_is_borrowed() {
    let _alone = alone();
    let _watchdog = Watchdog::start("departures");
    for world in worlds() {
        let (source, words) = patterned(world.1);
        let template = source.freeze().unwrap().into_template().unwrap();
        let arena = restored(&template, world);
        let range = template.range_in(&arena, words.range());
        let held = arena.hold_for_io(range).unwrap();
        let mine = adopted(&template, &arena, &words);
        let gone = VirtRange::new(range.start + CHUNK_BYTES + 4096, 3 * CHUNK_BYTES);
        // SAFETY: no code refers to it meanwhile.
        unsafe { arena.raw().detach(gone, cowslip::raw::Departure::Advice) }.unwrap();
        assert!(is_pattern(&mine), "{world:?}");
        drop(held);
        assert!(arena.wait_live(PATIENCE) && is_pattern(&mine), "{world:?}");
        drop((template, source.freeze()));
        assert!(is_pattern(&mine) && is_pattern(&words), "{world:?}");
    }
}

const LENDER: &str = "COWSLIP_TEST_LENDER";

/// Not a test: a process that sends a template and waits to be killed.
#[test]
fn lender() {
    if std::env::var_os(LENDER).is_none() {
        return;
    }
    use std::os::fd::FromRawFd;
    // SAFETY: standard input is a socket that nothing else here uses.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let (arena, words) = patterned(Backing::Thp);
    let template = arena.freeze().unwrap().into_template().unwrap();
    template.send(&socket).unwrap();
    (&socket).write_all(&(words.range().start as u64).to_le_bytes()).unwrap();
    wait_for_ever();
}

#[test]
fn the_process_that_lends_may_be_killed_at_any_moment() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a killed lender");
    for round in 0..scaled(10) {
        for world in worlds().into_iter().filter(|world| world.1 == Backing::Thp) {
            let (mut socket, theirs) = UnixStream::pair().unwrap();
            let mut process = Command::new(std::env::current_exe().unwrap())
                .args(["lender", "--exact", "--nocapture"])
                .env(LENDER, "1")
                .stdin(OwnedFd::from(theirs))
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            // SAFETY: the process belongs to this test.
            let template = unsafe { Template::receive(&socket) }.unwrap();
            let mut start = [0; 8];
            socket.read_exact(&mut start).unwrap();
            let range = VirtRange::new(u64::from_le_bytes(start) as usize, WORDS * 8);
            let arena = restored(&template, world);
            let counters = Counters::restored(&arena, template.range_in(&arena, range));
            drop(template);
            if round % 2 == 0 {
                process.kill().unwrap();
            }
            let before = counters.slice().to_vec();
            assert!(is_pattern(&before));
            let writers = Writers::start(&counters, 2);
            process.kill().unwrap();
            process.wait().unwrap();
            assert!(arena.wait_live(PATIENCE));
            let written = writers.stop();
            let sum = |words: &mut dyn Iterator<Item = u64>| words.fold(0, u64::wrapping_add);
            let expected = sum(&mut (0..WORDS).map(pattern)).wrapping_add(written);
            assert_eq!(sum(&mut counters.slice().iter().copied()), expected, "{world:?}");
        }
    }
}

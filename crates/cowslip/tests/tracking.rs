//! Arenas that track their changes: chunks that a save does not read equal the parent's, and everything that holds for
//! other arenas holds for these.

mod support;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cowslip::image::{
    Changes, Image, MergeOptions, RestoreOptions, SaveOptions, Saved, Strategy, merge, save,
};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ArenaSlice, Backing, ErrorKind, Frozen, Place, Prot, freeze_all};
use support::images::{Folder, proceed, verify, words};
use support::{
    Counters, PATIENCE, Scatter, Writers, eventually, fork_child, huge_mapped_bytes, pattern,
    scaled, skip, smaps_bytes, status_of,
};

const CHUNK_WORDS: usize = CHUNK_BYTES / 8;

/// An arena that tracks its changes, where that is possible.
fn tracked(capacity: ByteCount) -> Option<Arena> {
    let arena = Arena::new(capacity).unwrap();
    if arena.track_changes(true) {
        return Some(arena);
    }
    skip("pagemap_scan", "changes cannot be tracked here");
    None
}

/// Freezes, after waiting for the end of the thaw.
fn frozen(arena: &Arena) -> Frozen {
    arena.freeze_timeout(PATIENCE).unwrap()
}

fn save_to(frozen: &Frozen, path: &Path, parent: Option<&Path>, changes: Changes) -> Saved {
    let parent = parent.map(Path::to_path_buf);
    let options = SaveOptions { parent, changes, threads: 1, ..SaveOptions::default() };
    save(&[frozen], path, &options, &mut proceed).unwrap()
}

/// Saves by tracked changes, and by reading everything: the files must be equal behind their headers.
fn save_both(
    folder: &Folder,
    frozen: &Frozen,
    name: &str,
    parent: Option<&Path>,
) -> (PathBuf, Saved) {
    let (path, other) = (folder.file(name), folder.file("hashed"));
    let saved = save_to(frozen, &path, parent, Changes::Tracked);
    let hashed = save_to(frozen, &other, parent, Changes::Hashed);
    let content = |path| std::fs::read(path).unwrap().split_off(4096);
    assert!(content(&path) == content(&other), "{name}: {saved:?}, {hashed:?}");
    assert_eq!((saved.chunks, saved.left_out_chunks), (hashed.chunks, hashed.left_out_chunks));
    assert_eq!(hashed.read_chunks, hashed.chunks + hashed.left_out_chunks);
    (path, saved)
}

/// The content that a program finds after a restore.
fn restored(path: &Path, slice: &ArenaSlice<u64>, of: &Arena) -> Vec<u64> {
    let options = RestoreOptions {
        place: Place::Anywhere,
        strategy: Strategy::Eager,
        ..RestoreOptions::default()
    };
    let arena = verify(path).unwrap().restore(0, &options, &mut proceed).unwrap().into_arena();
    words(&arena, slice.range(), of).to_vec()
}

fn fill(slice: &mut [u64]) {
    slice.iter_mut().enumerate().for_each(|(i, value)| *value = pattern(i));
}

/// Waits for the thaw; returns the number of chunks that are known to be unchanged.
fn kept(arena: &Arena) -> u64 {
    assert!(arena.wait_live(PATIENCE));
    arena.metrics().kept_chunks
}

#[test]
fn a_save_reads_what_was_written_and_no_more() {
    let folder = Folder::new("tracked");
    let Some(arena) = tracked(ByteCount::mib(256)) else { return };
    let mut slice = arena.slice::<u64>(100 * CHUNK_WORDS).unwrap();
    fill(&mut slice);
    let (first, saved) = save_both(&folder, &frozen(&arena), "first", None);
    assert_eq!((saved.chunks, saved.read_chunks), (100, 100));
    assert_eq!(kept(&arena), 100);
    slice[57 * CHUNK_WORDS + 9] += 1;
    // Written, with the same value.
    slice[58 * CHUNK_WORDS] += 0;
    let (second, saved) = save_both(&folder, &frozen(&arena), "second", Some(&first));
    assert_eq!((saved.chunks, saved.left_out_chunks), (1, 99));
    assert!((1..=2).contains(&saved.read_chunks), "{saved:?}");
    let view = frozen(&arena);
    let (_, saved) = save_both(&folder, &view, "third", Some(&second));
    assert_eq!((saved.chunks, saved.read_chunks), (0, 0));
    // A freeze remembers all earlier saves, not only the last one.
    let (again, saved) = save_both(&folder, &view, "again", Some(&first));
    assert_eq!(saved.chunks, 1);
    assert!((1..=2).contains(&saved.read_chunks), "{saved:?}");
    assert!(restored(&again, &slice, &arena) == slice[..]);
    drop(view);
    // A merged image counts as the same image.
    merge(&Image::open(&second).unwrap(), &second, &MergeOptions::default(), &mut proceed).unwrap();
    let (_, saved) = save_both(&folder, &frozen(&arena), "merged", Some(&second));
    assert_eq!(saved.read_chunks, 0);
    assert!(!arena.track_changes(false));
    assert_eq!(kept(&arena), 0);
    let (_, saved) = save_both(&folder, &frozen(&arena), "untracked", Some(&second));
    assert_eq!(saved.read_chunks, 100);
}

#[test]
fn an_older_view_onto_the_image_of_a_newer_one_has_its_own_content() {
    let folder = Folder::new("tracked-older");
    let Some(arena) = tracked(ByteCount::mib(64)) else { return };
    let mut slice = arena.slice::<u64>(8 * CHUNK_WORDS).unwrap();
    fill(&mut slice);
    drop(frozen(&arena));
    assert!(arena.wait_live(PATIENCE));
    let (older, then) = (frozen(&arena), slice.to_vec());
    slice[3 * CHUNK_WORDS] += 1;
    let newer = arena.freeze().unwrap();
    let (newer, _) = save_both(&folder, &newer, "newer", None);
    let (older, _) = save_both(&folder, &older, "older", Some(&newer));
    assert!(restored(&older, &slice, &arena) == then);
    assert!(restored(&newer, &slice, &arena) == slice[..]);
}

#[test]
fn a_chain_of_tracked_images_is_the_frozen_views_while_threads_write() {
    let folder = Folder::new("tracked-chain");
    let Some(arena) = tracked(ByteCount::mib(64)) else { return };
    let size = ByteCount::mib(24);
    let counters = Counters::new(&arena, size);
    let quiet = arena.slice::<u64>(4 * CHUNK_WORDS).unwrap();
    let mut scatter = Scatter(0x7ac4ed);
    let mut parent: Option<PathBuf> = None;
    let mut read_chunks = 0;
    let mut written = 0;
    for generation in 0..scaled(32) {
        // From everywhere to a part, from many writes to few.
        let from = scatter.next() as usize % counters.len();
        let avoided = if generation % 3 == 0 { 0..0 } else { 0..from };
        let writers = Writers::start_avoiding(&counters, 2, avoided);
        let before = counters.sum();
        eventually("the writers write", || counters.sum() > before + 100 + generation as u64 * 200);
        let view = frozen(&arena);
        let name = format!("generation-{generation}");
        let (path, saved) = save_both(&folder, &view, &name, parent.as_deref());
        if generation > 0 {
            read_chunks += saved.read_chunks;
        }
        assert!(restored(&path, counters.slice(), &arena) == view.slice(counters.slice()));
        drop(view);
        written += writers.stop();
        assert_eq!(counters.sum(), written, "no update is lost");
        parent = Some(path);
    }
    let all = (size.0 / CHUNK_BYTES as u64 + 4) * (scaled(32) as u64 - 1);
    assert!(read_chunks < all * 9 / 10, "{read_chunks} of {all}");
    assert!(quiet.iter().all(|&value| value == 0));
}

#[test]
fn i1_i3_updates_and_order_hold_through_many_tracked_freezes() {
    let (Some(first), Some(second)) = (tracked(ByteCount::mib(64)), tracked(ByteCount::mib(64)))
    else {
        return;
    };
    let a = Counters::new(&first, ByteCount::mib(8));
    let b = Counters::new(&second, ByteCount::mib(8));
    let scattered = Counters::new(&first, ByteCount::mib(24));
    let writers = Writers::start(&scattered, 2);
    let stop = Arc::new(AtomicBool::new(false));
    // Each tick is written to a, then to b, in a chunk that may be kept: b may never be ahead of a.
    let ticker = std::thread::spawn({
        let (a, b, stop) = (a.clone(), b.clone(), Arc::clone(&stop));
        move || {
            let mut scatter = Scatter(3);
            for tick in 1.. {
                let place = scatter.next() as usize % a.len();
                a.at(place).store(tick, Ordering::SeqCst);
                b.at(place).store(tick, Ordering::SeqCst);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if tick % 64 == 0 {
                    std::thread::yield_now();
                }
            }
        }
    });
    let newest = |values: &[u64]| values.iter().copied().max().unwrap();
    for _ in 0..scaled(100) {
        assert!(first.wait_live(PATIENCE) && second.wait_live(PATIENCE));
        let views = freeze_all(&[&second, &first]).unwrap();
        let (in_b, in_a) = (newest(views[0].slice(b.slice())), newest(views[1].slice(a.slice())));
        assert!(in_a >= in_b && in_a - in_b <= 1, "a {in_a}, b {in_b}");
    }
    stop.store(true, Ordering::Relaxed);
    ticker.join().unwrap();
    let written = writers.stop();
    assert_eq!(scattered.sum(), written);
    assert_eq!(first.metrics().plain_freezes, 0);
}

#[test]
fn what_is_written_while_a_freeze_gets_ready_is_in_its_view() {
    let folder = Folder::new("tracked-settled");
    let Some(arena) = tracked(ByteCount::mib(256)) else { return };
    let counters = Counters::new(&arena, ByteCount::mib(64));
    let stop = Arc::new(AtomicBool::new(false));
    // Few enough writes that most chunks are clean when a freeze first looks at them.
    let ticker = std::thread::spawn({
        let (counters, stop) = (counters.clone(), Arc::clone(&stop));
        move || {
            let mut scatter = Scatter(11);
            let mut ticks = 0u64;
            while !stop.load(Ordering::Relaxed) {
                ticks += 1;
                counters
                    .at(1 + scatter.next() as usize % (counters.len() - 1))
                    .store(ticks, Ordering::SeqCst);
                counters.at(0).store(ticks, Ordering::SeqCst);
                (0..6000).for_each(|_| std::hint::spin_loop());
            }
            ticks
        }
    });
    let mut parent = None;
    let mut generations = 0;
    let mut settled = 0;
    eventually("freezes find pages", || {
        let view = frozen(&arena);
        let now = arena.metrics().copied_in_freeze_pages;
        if now == settled && parent.is_some() {
            return false;
        }
        settled = now;
        let values = view.slice(counters.slice());
        let newest = values[1..].iter().copied().max().unwrap();
        assert!(newest >= values[0] && newest - values[0] <= 1, "{newest}, {}", values[0]);
        let name = generations.to_string();
        let (path, _) = save_both(&folder, &view, &name, parent.as_deref());
        assert!(restored(&path, counters.slice(), &arena) == *values);
        parent = Some(path);
        generations += 1;
        generations > 1
    });
    stop.store(true, Ordering::Relaxed);
    let ticks = ticker.join().unwrap();
    assert_eq!(counters.at(0).load(Ordering::Relaxed), ticks);
}

#[test]
fn a_fork_between_two_saves_costs_no_more_than_reading() {
    let folder = Folder::new("tracked-fork");
    let Some(arena) = tracked(ByteCount::mib(64)) else { return };
    let mut slice = arena.slice::<u64>(10 * CHUNK_WORDS).unwrap();
    fill(&mut slice);
    let (mut parent, _) = save_both(&folder, &frozen(&arena), "first", None);
    for round in 0..6 {
        assert_eq!(kept(&arena), 10);
        // In a kept chunk, so that the child has it as a private page of its parent.
        slice[(round + 1) * CHUNK_WORDS] = 7;
        let before: u64 = slice.iter().fold(0, |sum, &value| sum.wrapping_add(value));
        let pid = fork_child(&[&arena], || {
            slice.iter().fold(0u64, |sum, &value| sum.wrapping_add(value)) == before
        });
        slice[round * CHUNK_WORDS + 5] = round as u64;
        assert_eq!(status_of(pid.unwrap()), 0, "the child has what was there");
        let (path, saved) = save_both(&folder, &frozen(&arena), &round.to_string(), Some(&parent));
        assert!((2..10).contains(&saved.read_chunks), "{saved:?}");
        assert!(restored(&path, &slice, &arena) == slice[..], "round {round}");
        parent = path;
    }
}

#[test]
#[allow(unsafe_code)]
fn memory_given_back_reused_guarded_and_detached_between_two_saves() {
    let folder = Folder::new("tracked-space");
    let Some(arena) = tracked(ByteCount::mib(64)) else { return };
    let mut slice = arena.slice::<u64>(12 * CHUNK_WORDS).unwrap();
    fill(&mut slice);
    let start = slice.range().start;
    let page = page_size_bytes();
    let part = |chunk: usize, from: usize, pages: usize| {
        VirtRange::new(start + chunk * CHUNK_BYTES + from * page, pages * page)
    };
    let whole = |chunk| part(chunk, 0, CHUNK_BYTES / page);
    let (mut parent, _) = save_both(&folder, &frozen(&arena), "first", None);
    // SAFETY: only this thread uses the slice, and never again where it gave memory back.
    let steps: [(&str, &dyn Fn(), u64); 8] = unsafe {
        [
            ("discard a part", &|| arena.discard(part(0, 3, 9)).unwrap(), 1),
            ("discard a chunk", &|| arena.discard(whole(1)).unwrap(), 1),
            ("guard a page", &|| arena.protect(part(2, 7, 1), Prot::NONE).unwrap(), 0),
            ("release a part", &|| arena.release(part(3, 5, 20)).unwrap(), 1),
            (
                "use it again",
                &|| {
                    assert!(arena.allocate_at(part(3, 5, 20), Prot::RW).unwrap());
                    let again = part(3, 5, 20).start as *mut u64;
                    assert_eq!(again.read(), 0);
                    again.write(77);
                },
                1,
            ),
            ("release a chunk", &|| arena.release(whole(4)).unwrap(), 0),
            (
                "use that again",
                &|| {
                    assert!(arena.allocate_at(whole(4), Prot::RW).unwrap());
                    assert_eq!((whole(4).start as *mut u64).read(), 0);
                },
                1,
            ),
            (
                "detach a part",
                &|| arena.raw().detach(part(5, 1, 2), cowslip::raw::Departure::Advice).unwrap(),
                1,
            ),
        ]
    };
    for (name, act, changed) in steps {
        assert!(kept(&arena) > 6);
        act();
        // The same while a view is alive, for freed parts of frozen chunks.
        let view = frozen(&arena);
        let (path, saved) = save_both(&folder, &view, name, Some(&parent));
        assert_eq!(saved.read_chunks, changed, "{name}: {saved:?}");
        assert!(verify(&path).is_ok());
        drop(view);
        parent = path;
    }
    let view = frozen(&arena);
    // SAFETY: as above.
    unsafe {
        arena.release(part(6, 1, 10)).unwrap();
        arena.discard(part(7, 1, 10)).unwrap();
        arena.discard(whole(8)).unwrap();
    }
    assert!(view.slice(&slice)[6 * CHUNK_WORDS..9 * CHUNK_WORDS].iter().all(|&value| value != 0));
    drop(view);
    let (_, saved) = save_both(&folder, &frozen(&arena), "given back while frozen", Some(&parent));
    assert_eq!(saved.read_chunks, 3, "{saved:?}");
}

#[test]
fn a_freeze_that_no_image_came_of_is_no_parent() {
    let folder = Folder::new("tracked-failed");
    let Some(arena) = tracked(ByteCount::mib(64)) else { return };
    let mut slice = arena.slice::<u64>(10 * CHUNK_WORDS).unwrap();
    fill(&mut slice);
    let (first, _) = save_both(&folder, &frozen(&arena), "first", None);
    let parent = Some(first.clone());
    let mut change = |chunk: usize| {
        kept(&arena);
        slice[chunk * CHUNK_WORDS + 1] += 1;
    };
    change(1);
    drop(frozen(&arena));
    change(2);
    let options = SaveOptions { parent: parent.clone(), ..SaveOptions::default() };
    let mut stop = |_| ControlFlow::Break(());
    let broken = save(&[&frozen(&arena)], &folder.file("second"), &options, &mut stop).unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::Busy);
    change(3);
    let nowhere = folder.file("nowhere").join("second");
    save(&[&frozen(&arena)], &nowhere, &options, &mut proceed).unwrap_err();
    change(4);
    let (second, saved) = save_both(&folder, &frozen(&arena), "second", parent.as_deref());
    assert_eq!((saved.chunks, saved.read_chunks), (4, 4));
    assert!(restored(&second, &slice, &arena) == slice[..]);

    // An image saved from another arena is no parent either.
    let other = tracked(ByteCount::mib(64)).unwrap();
    let mut copy = other.slice::<u64>(10 * CHUNK_WORDS).unwrap();
    copy.copy_from_slice(&slice);
    copy[0] ^= 1;
    let (_, saved) = save_both(&folder, &frozen(&other), "other", Some(&second));
    assert_eq!((saved.chunks, saved.read_chunks), (1, 10));
}

#[test]
fn arenas_that_were_restored_track_too_and_places_are_not_mixed_up() {
    let folder = Folder::new("tracked-two");
    let (Some(first), Some(second)) = (tracked(ByteCount::mib(32)), tracked(ByteCount::mib(32)))
    else {
        return;
    };
    let mut slices = [&first, &second].map(|arena| arena.slice::<u64>(5 * CHUNK_WORDS).unwrap());
    slices.iter_mut().for_each(|slice| fill(slice));
    slices[1][3] = 4;
    let both = |order: [&Arena; 2], path: &Path, parent: Option<&Path>| {
        order.iter().for_each(|arena| assert!(arena.wait_live(PATIENCE)));
        let views = freeze_all(&order).unwrap();
        let options = SaveOptions { parent: parent.map(Path::to_owned), ..SaveOptions::default() };
        save(&views.iter().collect::<Vec<_>>(), path, &options, &mut proceed).unwrap()
    };
    let (path, next, swapped) = (folder.file("one"), folder.file("two"), folder.file("swapped"));
    both([&first, &second], &path, None);
    assert!(first.wait_live(PATIENCE));
    slices[0][CHUNK_WORDS] = 9;
    let saved = both([&first, &second], &next, Some(&path));
    assert_eq!((saved.chunks, saved.read_chunks), (1, 1));
    let saved = both([&second, &first], &swapped, Some(&path));
    assert_eq!((saved.chunks, saved.read_chunks), (3, 10), "each in the other's place");

    let options = RestoreOptions { place: Place::Anywhere, ..RestoreOptions::default() };
    let image = Image::open(&next).unwrap();
    let arena = image.restore(0, &options, &mut proceed).unwrap().into_arena();
    assert!(arena.track_changes(true));
    let (path, saved) = save_both(&folder, &frozen(&arena), "restored", None);
    assert_eq!(saved.read_chunks, 5);
    let (_, saved) = save_both(&folder, &frozen(&arena), "restored-again", Some(&path));
    assert_eq!(saved.read_chunks, 0);
}

#[test]
fn huge_pages_stay_and_copies_go_while_nobody_freezes() {
    let Some(arena) = tracked(ByteCount::mib(256)) else { return };
    let size = ByteCount::mib(128);
    let counters = Counters::new(&arena, size);
    counters.at(0).store(1, Ordering::Relaxed);
    (0..counters.len()).step_by(512).for_each(|i| counters.at(i).store(1, Ordering::Relaxed));
    let range = counters.slice().range();
    for round in 0..scaled(10) {
        drop(frozen(&arena));
        assert!(arena.wait_live(PATIENCE));
        let kept = arena.metrics().kept_chunks;
        assert!(kept > 0, "round {round}");
        assert_eq!(counters.sum(), 1 << 15, "reads every chunk");
        assert_eq!(huge_mapped_bytes(range), size.0, "round {round}: kept chunks too");
        // One chunk completely, and a page of every other: all of it becomes live again without a
        // freeze.
        let first = round * CHUNK_WORDS..(round + 1) * CHUNK_WORDS;
        let places = first.step_by(512).chain((0..counters.len()).step_by(2 * CHUNK_WORDS));
        for i in places {
            counters.at(i).store(1, Ordering::Relaxed);
        }
        assert!(smaps_bytes(range, "Anonymous") > 0 || arena.metrics().kept_chunks < kept);
        eventually("the copies go", || smaps_bytes(range, "Anonymous") == 0);
        assert_eq!(counters.sum(), 1 << 15);
        assert_eq!(huge_mapped_bytes(range), size.0, "round {round}");
    }
}

#[test]
fn what_cannot_be_tracked_is_hashed_and_said() {
    let folder = Folder::new("untracked");
    let base = Arena::builder(ByteCount::mib(16)).backing(Backing::Base);
    let plain = Arena::builder(ByteCount::mib(16)).userfaultfd(false);
    for builder in [base, plain] {
        let arena = builder.build().unwrap();
        assert!(!arena.track_changes(true));
        let mut slice = arena.slice::<u64>(3 * CHUNK_WORDS).unwrap();
        fill(&mut slice);
        let thawed = |view: Frozen| {
            #[allow(unsafe_code)]
            // SAFETY: only this thread uses the arena.
            unsafe { view.thaw_exclusive() }.unwrap();
        };
        let view = frozen(&arena);
        let (first, _) = save_both(&folder, &view, "first", None);
        thawed(view);
        slice[0] = 1;
        let view = frozen(&arena);
        let (_, saved) = save_both(&folder, &view, "second", Some(&first));
        assert_eq!((saved.chunks, saved.read_chunks), (1, 3));
        thawed(view);
    }
}

#[test]
fn many_short_runs_do_not_make_a_freeze_long() {
    let Some(arena) = tracked(ByteCount::gib(1)) else { return };
    let counters = Counters::new(&arena, ByteCount::mib(600));
    drop(frozen(&arena));
    assert_eq!(kept(&arena), 300);
    let clock = AtomicU64::new(1);
    for chunk in (0..300).step_by(2) {
        let now = clock.fetch_add(1, Ordering::Relaxed);
        counters.at(chunk * CHUNK_WORDS).store(now, Ordering::Relaxed);
    }
    let view = frozen(&arena);
    let stored = (0..300).step_by(2).map(|chunk| view.slice(counters.slice())[chunk * CHUNK_WORDS]);
    assert!(stored.eq(1..=150));
    drop(view);
    // Runs of one chunk each; all but 64 of them were made live for the freeze.
    assert_eq!(kept(&arena), 300);
    assert_eq!(counters.sum(), (1..=150u64).sum::<u64>());
}

//! Images restored while they are in use: exact, checked before they are seen, and no thread hangs.

mod support;

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cowslip::image::{Image, OnDamage, RestoreOptions, Restored, SaveOptions, Strategy, save};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ArenaBuilder, Backing, ErrorKind, Fork, Place, Prot};
use cowslip_sys::{Errno, cache, memfile};
use support::images::{ELSEWHERE, Folder, patterned, proceed, saved, verify, words};
use support::{Counters, PATIENCE, Scatter, Watchdog, Writers, fork_child, pattern, status_of};

const WORDS: usize = CHUNK_BYTES / 8;

/// An image of `chunks` chunks of pattern, at the start of an arena.
fn image_of(path: &Path, chunks: usize) -> Image {
    image_from(Arena::builder(ByteCount((chunks * CHUNK_BYTES) as u64)), path)
}

fn image_from(builder: ArenaBuilder, path: &Path) -> Image {
    let arena = builder.build().unwrap();
    let chunks = arena.range().len / CHUNK_BYTES;
    let mut slice = arena.slice::<u64>(chunks * WORDS).unwrap();
    slice.iter_mut().enumerate().for_each(|(i, value)| *value = pattern(i));
    // By one thread: chunk after chunk.
    let options = SaveOptions { threads: 1, ..SaveOptions::default() };
    save(&[&arena.freeze().unwrap()], path, &options, &mut proceed).unwrap();
    Image::open(path).unwrap()
}

fn hybrid(image: &Image, options: RestoreOptions) -> Option<Restored> {
    let restored = image.restore(0, &options, &mut proceed).unwrap();
    if restored.strategy() == Strategy::Hybrid {
        return Some(restored);
    }
    support::skip("userfaultfd", "restores are eager");
    None
}

/// Brings in only touched chunks.
fn recording() -> RestoreOptions {
    RestoreOptions { record: true, ..RestoreOptions::default() }
}

fn whole(arena: &Arena) -> &[u64] {
    words(arena, arena.range(), arena)
}

fn is_pattern(words: &[u64]) -> bool {
    words.iter().enumerate().all(|(i, &word)| word == pattern(i))
}

/// Overwrites the start of the chunk's content in the file with `bytes`.
fn overwrite(path: &Path, chunk: usize, bytes: &[u8]) {
    // Each is stored whole, in order, at a multiple of its length, behind the header.
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, ((1 + chunk) * CHUNK_BYTES) as u64).unwrap();
}

#[test]
fn any_order_of_touches_sees_what_was_saved_and_ends_on_huge_pages_without_the_file() {
    let _watchdog = Watchdog::start("touching while it is restored");
    let folder = Folder::new("hybrid");
    let path = folder.file("image");
    let image = image_of(&path, 24);
    let Some(restored) = hybrid(&image, RestoreOptions::default()) else { return };
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let words = whole(restored.arena());
            scope.spawn(move || {
                let mut scatter = Scatter(seed);
                for _ in 0..20_000 {
                    let i = scatter.next() as usize % words.len();
                    assert_eq!(words[i], pattern(i));
                }
            });
        }
    });
    assert!(restored.wait(PATIENCE).unwrap());
    drop(image);
    let arena = restored.into_arena();
    assert!(is_pattern(whole(&arena)));
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    assert!(!maps.contains(path.to_str().unwrap()), "nothing maps the image");
    assert_eq!(
        support::smaps_flags(arena.range(), &["um", "uw", "ui"]),
        0,
        "nothing is registered"
    );
    if arena.pages().is_huge() {
        assert_eq!(support::huge_mapped_bytes(arena.range()), arena.range().len as u64);
    }
    let names = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).any(|file| file == path)
    };
    support::eventually("the file is closed", || !names());
}

#[test]
fn writers_and_system_calls_lose_nothing_while_it_is_restored_frozen_forked_and_saved_again() {
    let _watchdog = Watchdog::start("writing while it is restored");
    let folder = Folder::new("again");
    let path = folder.file("image");
    let first = Arena::new(ByteCount::mib(48)).unwrap();
    let counters = Counters::new(&first, ByteCount::mib(40));
    let mut buffer = first.slice::<u8>(2 * CHUNK_BYTES).unwrap();
    buffer.fill(1);
    let buffer_at = buffer.range().start - first.range().start;
    (0..counters.len()).for_each(|i| counters.at(i).store(i as u64, Relaxed));
    let (range, from) = (counters.slice().range(), first.range());
    saved(&first.freeze().unwrap(), &path);
    drop((counters, buffer, first));
    let before: u64 = (0..range.len as u64 / 8).sum();

    for round in 0..support::scaled(6) {
        let image = Image::open(&path).unwrap();
        let Some(restored) = hybrid(&image, RestoreOptions::default()) else { return };
        let arena = restored.arena();
        let at = VirtRange::new(arena.range().start + (range.start - from.start), range.len);
        let counters = Counters::restored(arena, at);
        let writers = Writers::start(&counters, 2);
        // A system call that writes to memory that has not arrived yet.
        let at = VirtRange::new(arena.range().start + buffer_at, 2 * CHUNK_BYTES);
        #[allow(unsafe_code)]
        // SAFETY: no other code uses the restored buffer.
        let mut buffer = unsafe { arena.adopt_slice::<u8>(at) }.unwrap();
        let this = std::env::current_exe().unwrap();
        let read = File::open(&this).unwrap().read(&mut buffer[100..]).unwrap();
        assert!(buffer[100..100 + read] == std::fs::read(&this).unwrap()[..read]);
        assert!(buffer[..100].iter().all(|&byte| byte == 1));
        buffer.fill(1);
        if round % 2 == 0 {
            let words = counters.len();
            let pid = fork_child(&[arena], || {
                (0..words).all(|i| counters.at(i).load(Relaxed) >= i as u64)
            });
            assert_eq!(status_of(pid.unwrap()), 0, "the child sees all of it");
        }
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        assert!(restored.wait(PATIENCE).unwrap(), "a freeze finishes the restore");
        // Saves over the file that it came from.
        let other = folder.file("other");
        saved(&frozen, &path);
        saved(&frozen, &other);
        assert!(std::fs::metadata(&other).unwrap().len() > 0);
        drop(frozen);
        let written = writers.stop();
        assert_eq!(counters.sum(), before + written, "no update is lost");
        verify(&path).unwrap();
        // The next round begins from the first image again.
        assert!(arena.wait_live(PATIENCE));
        (0..counters.len()).for_each(|i| counters.at(i).store(i as u64, Relaxed));
        saved(&arena.freeze_timeout(PATIENCE).unwrap(), &path);
    }
}

#[test]
fn a_file_that_lies_is_told_of_and_never_shows_zeroes() {
    let _watchdog = Watchdog::start("a damaged image");
    let folder = Folder::new("lies");
    let path = folder.file("image");
    let image = image_of(&path, 6);
    overwrite(&path, 3, &[0; 64]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&told);
    let on_damage = OnDamage::new(move |error, range| {
        list.lock().unwrap().push((error.kind(), range));
        panic!("a callback that panics does no harm");
    });
    let options = RestoreOptions { on_damage: Some(on_damage), ..RestoreOptions::default() };
    let Some(restored) = hybrid(&image, options) else { return };
    let arena = restored.arena();
    let lost = VirtRange::new(arena.range().start + 3 * CHUNK_BYTES, CHUNK_BYTES);

    // A system call fails instead of waiting for ever.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let written = cowslip_sys::process::write_once(
        writer.as_fd(),
        bytemuck::bytes_of(&words(arena, lost, arena)[0]),
    );
    assert_eq!(written.unwrap_err().raw_os_error(), libc::EFAULT);
    drop(writer);
    assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0, "nothing was written");

    let error = restored.wait(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert_eq!(*told.lock().unwrap(), [(ErrorKind::Corrupt, lost)]);
    let words = whole(arena);
    let rest = (0..words.len()).filter(|i| i / WORDS != 3);
    assert!(rest.clone().all(|i| words[i] == pattern(i)), "the rest is there");

    let refused = arena.freeze().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "zeroes must not pass for content: {refused}");
    #[allow(unsafe_code)]
    // SAFETY: no code refers to the lost chunk.
    let part = unsafe { arena.discard(VirtRange::new(lost.start, page_size_bytes())) };
    assert_eq!(part.unwrap_err().kind(), ErrorKind::Corrupt);
    #[allow(unsafe_code)]
    // SAFETY: as above.
    unsafe { arena.discard(lost) }.expect("its content is given up");
    assert!(words[3 * WORDS..4 * WORDS].iter().all(|&word| word == 0));
    drop(arena.freeze().expect("whole again, without it"));
}

/// Reads a word of lost memory, which kills it.
#[test]
fn victim() {
    let Some(path) = std::env::var_os("COWSLIP_TEST_IMAGE") else { return };
    let options = RestoreOptions::default();
    let image = Image::open(Path::new(&path)).unwrap();
    let restored = image.restore(0, &options, &mut proceed).unwrap();
    println!("{}", whole(restored.arena())[WORDS]);
}

#[test]
fn an_access_to_what_is_lost_is_a_sigbus() {
    use std::os::unix::process::ExitStatusExt;
    let folder = Folder::new("sigbus");
    let path = folder.file("image");
    let image = image_of(&path, 3);
    let Some(_) = hybrid(&image, RestoreOptions::default()) else { return };
    overwrite(&path, 1, b"damage");
    let this = std::env::current_exe().unwrap();
    let mut victim = std::process::Command::new(this);
    victim.args(["--exact", "victim", "--test-threads=1"]).env("COWSLIP_TEST_IMAGE", &path);
    let output = victim.output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

#[test]
fn a_file_that_becomes_shorter_is_damage_and_one_that_is_unlinked_is_none() {
    let _watchdog = Watchdog::start("a truncated image");
    let folder = Folder::new("short");
    let path = folder.file("image");
    let image = image_of(&path, 8);
    let Some(restored) = hybrid(&image, recording()) else { return };
    let words = whole(restored.arena());
    assert_eq!(words[0], pattern(0));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(words[WORDS], pattern(WORDS), "it is open");

    let path = folder.file("another");
    let image = image_of(&path, 8);
    let Some(restored) = hybrid(&image, recording()) else { return };
    let words = whole(restored.arena());
    assert_eq!(words[0], pattern(0));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((5 * CHUNK_BYTES) as u64).unwrap();
    // The freeze asks for the rest, which is missing.
    assert_eq!(restored.arena().freeze().unwrap_err().kind(), ErrorKind::Corrupt);
    assert!((0..4 * WORDS).all(|i| words[i] == pattern(i)));
    assert!(restored.wait(PATIENCE).is_err());
}

#[test]
fn the_working_set_that_was_recorded_comes_first() {
    let _watchdog = Watchdog::start("recording");
    let folder = Folder::new("record");
    let path = folder.file("image");
    let image = image_of(&path, 16);
    let Some(restored) = hybrid(&image, recording()) else { return };
    let words = whole(restored.arena());
    for chunk in [11, 2, 11, 7] {
        assert_eq!(words[chunk * WORDS + 5], pattern(chunk * WORDS + 5));
    }
    let there = || restored.progress().done_bytes / CHUNK_BYTES as u64;
    support::eventually("what was touched is done", || there() == 3);
    let file = restored.finish_recording().unwrap().to_owned();
    assert_eq!(file, folder.file("image.working-set"));
    assert!(restored.wait(PATIENCE).unwrap(), "the rest follows");
    assert!(is_pattern(words));

    // With one reading thread and damage in a chunk that was not recorded: the recorded chunks are in, though no thread
    // touched them.
    overwrite(&path, 0, b"damage");
    let seen = Arc::new(Mutex::new(0));
    let count = Arc::clone(&seen);
    let on_damage = OnDamage::new(move |_, range| *count.lock().unwrap() = range.start);
    let options =
        RestoreOptions { threads: 1, on_damage: Some(on_damage), ..RestoreOptions::default() };
    let restored = image.restore(0, &options, &mut proceed).unwrap();
    assert!(restored.wait(PATIENCE).is_err());
    assert_eq!(*seen.lock().unwrap(), restored.arena().range().start);

    // That of another image, or a damaged one, counts as none.
    let other = image_of(&path, 16);
    assert!(other.restore(0, &options, &mut proceed).unwrap().wait(PATIENCE).unwrap());
    std::fs::write(&file, b"COWSLIPW and so on").unwrap();
    assert!(other.restore(0, &options, &mut proceed).unwrap().wait(PATIENCE).unwrap());
    let eager = RestoreOptions { strategy: Strategy::Eager, ..recording() };
    assert_eq!(other.restore(0, &eager, &mut proceed).unwrap_err().kind(), ErrorKind::Usage);
    let plain = other.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    assert_eq!(plain.finish_recording().unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn the_first_chunk_comes_with_the_arena_if_the_page_cache_has_it() {
    let _watchdog = Watchdog::start("the first chunk");
    let folder = Folder::new("first");
    let path = folder.file("image");
    let image = image_of(&path, 1);
    let file = File::open(&path).unwrap();
    let restore = || hybrid(&image, RestoreOptions::default());
    // A save bypasses the page cache.
    drop(std::fs::read(&path).unwrap());
    let Some(restored) = restore() else { return };
    let is_there = restored.wait(Duration::ZERO).unwrap();
    let cached = memfile::read_cached_at(file.as_fd(), &mut [0], 0);
    if cached == Err(Errno::OPNOTSUPP) {
        support::skip("nowait", "the file system cannot tell what the page cache has");
    } else {
        assert_eq!(is_there, restored.arena().pages().is_huge());
    }
    assert!(restored.wait(PATIENCE).unwrap() && is_pattern(whole(restored.arena())));

    // It is not waited for.
    cache::drop_cached(file.as_fd()).unwrap();
    let restored = restore().unwrap();
    assert!(is_pattern(whole(restored.arena())) && restored.wait(PATIENCE).unwrap());

    // The damage is never visible.
    overwrite(&path, 0, b"damage");
    let restored = restore().unwrap();
    assert_eq!(restored.wait(PATIENCE).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(restored.arena().freeze().unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn memory_is_given_back_protected_and_left_while_it_is_restored() {
    let _watchdog = Watchdog::start("operations while it is restored");
    let folder = Folder::new("operations");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let slice = patterned(&arena);
    let guard = arena.allocate(ByteCount::mib(1), Prot::NONE).unwrap();
    let (used, start, content) = (slice.range(), arena.range().start, slice.to_vec());
    saved(&arena.freeze().unwrap(), &path);
    let image = Image::open(&path).unwrap();
    let Some(restored) = hybrid(&image, recording()) else { return };
    let there = restored.arena();
    let moved =
        |range: VirtRange| VirtRange::new(there.range().start + (range.start - start), range.len);
    let page = page_size_bytes();
    let chunk = |i: usize| VirtRange::new(used.start + i * CHUNK_BYTES, CHUNK_BYTES);
    let part = |i: usize| VirtRange::new(chunk(i).start + 5 * page, 2 * page);
    #[allow(unsafe_code)]
    // SAFETY: no code refers to the restored memory.
    unsafe {
        there.discard(moved(part(0))).unwrap();
        there.protect(moved(part(1)), Prot::READ).unwrap();
        there.raw().detach(moved(chunk(3)), cowslip::raw::Departure::Advice).unwrap();
        there.release(moved(chunk(5))).unwrap();
    }
    let fresh = there.slice::<u64>(WORDS).unwrap();
    assert!(fresh.iter().all(|&word| word == 0), "new memory is zeroes");
    assert_eq!(there.raw().parts(moved(guard))[0].2, Prot::NONE);
    assert!(restored.finish_recording().is_ok() && restored.wait(PATIENCE).unwrap());
    let words = words(&arena, used, &arena);
    let restored_words = support::images::words(there, used, &arena);
    for i in (0..content.len()).filter(|i| i / WORDS != 5) {
        let is_discarded = (5 * page / 8..7 * page / 8).contains(&i);
        assert_eq!(restored_words[i], if is_discarded { 0 } else { words[i] }, "word {i}");
    }
}

#[test]
fn an_arena_that_is_dropped_half_way_leaves_nothing_behind() {
    let _watchdog = Watchdog::start("dropping while it is restored");
    let folder = Folder::new("dropped");
    // At addresses that no other test of this process uses in the meantime.
    let builder = Arena::builder(ByteCount::mib(24)).at(ELSEWHERE + (1 << 40));
    let image = image_from(builder, &folder.file("image"));
    for round in 0..support::scaled(30) {
        let options = RestoreOptions { place: Place::Original, ..RestoreOptions::default() };
        let Some(restored) = hybrid(&image, options) else { return };
        let arena = restored.into_arena();
        let i = round % 12 * WORDS;
        assert_eq!(whole(&arena)[i], pattern(i));
        let range = arena.range();
        drop(arena);
        assert_eq!(support::smaps_bytes(range, "Size"), 0, "unmapped");
    }
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names
            .filter(|name| name.starts_with("cowslip-reader") || name.starts_with("cowslip-faults"))
            .count()
    };
    support::eventually("its threads end", || threads() == 0);
}

#[test]
fn without_userfaultfd_it_is_all_there_at_once() {
    let folder = Folder::new("eager");
    let image = image_of(&folder.file("image"), 5);
    let mut calls = Vec::new();
    let mut tell = |now| {
        calls.push(now);
        std::ops::ControlFlow::Continue(())
    };
    let options = RestoreOptions { strategy: Strategy::Eager, ..RestoreOptions::default() };
    let restored = image.restore(0, &options, &mut tell).unwrap();
    assert_eq!(calls.last().map(|now| now.done_bytes), Some(5 * CHUNK_BYTES as u64));
    assert!(is_pattern(whole(restored.arena())));
    assert!(restored.wait(std::time::Duration::ZERO).unwrap());
    let mut stop = |_| std::ops::ControlFlow::Break(());
    assert_eq!(image.restore(0, &options, &mut stop).unwrap_err().kind(), ErrorKind::Busy);
}

#[test]
fn at_the_original_addresses_or_a_clear_error() {
    let folder = Folder::new("place");
    let path = folder.file("image");
    let arena = Arena::builder(ByteCount::mib(8)).at(ELSEWHERE).build().unwrap();
    let mut slice = arena.slice::<u64>(WORDS).unwrap();
    slice[7] = &raw const slice[9] as u64;
    slice[9] = 99;
    saved(&arena.freeze().unwrap(), &path);
    let image = Image::open(&path).unwrap();
    let options = RestoreOptions { place: Place::Original, ..RestoreOptions::default() };
    let taken = image.restore(0, &options, &mut proceed).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Busy, "{taken}");
    drop((slice, arena));
    let restored = image.restore(0, &options, &mut proceed).unwrap();
    let pointer = whole(restored.arena())[7];
    #[allow(unsafe_code)]
    // SAFETY: restored memory, readable.
    let value = unsafe { *(pointer as *const u64) };
    assert_eq!(value, 99);
}

#[test]
fn on_base_pages_pages_of_zeroes_take_no_memory() {
    let folder = Folder::new("base");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let slice = patterned(&arena);
    let holes =
        slice.chunks_exact(page_size_bytes() / 8).filter(|page| page.iter().all(|&word| word == 0));
    let holes = holes.count() * page_size_bytes();
    saved(&arena.freeze().unwrap(), &path);
    let image = Image::open(&path).unwrap();
    for strategy in [Strategy::Hybrid, Strategy::Eager] {
        let options =
            RestoreOptions { strategy, backing: Backing::Base, ..RestoreOptions::default() };
        let restored = image.restore(0, &options, &mut proceed).unwrap();
        assert!(restored.wait(PATIENCE).unwrap());
        let there = restored.arena();
        assert_eq!(there.pages(), cowslip::Pages::Base);
        let range = slice.range();
        let shown = words(there, range, &arena);
        let is_content = |i: &usize| slice[*i] != 0;
        assert!((0..slice.len()).filter(is_content).all(|i| shown[i] == slice[i]));
        let used =
            VirtRange::new(there.range().start + (range.start - arena.range().start), range.len);
        let resident = support::smaps_bytes(there.range(), "Rss");
        assert!(resident <= (used.len - holes) as u64, "{resident} of {used}");
        assert!(shown[..slice.len()] == slice[..]);
    }
    let options = RestoreOptions { backing: Backing::Hugetlb, ..RestoreOptions::default() };
    let refused = image.restore(0, &options, &mut proceed).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

#[test]
fn an_image_of_nothing_but_zeroes_is_there_at_once_and_can_be_used() {
    let folder = Folder::new("empty");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let slice = arena.slice::<u64>(WORDS).unwrap();
    saved(&arena.freeze().unwrap(), &path);
    let image = Image::open(&path).unwrap();
    let restored = image.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    assert!(restored.wait(std::time::Duration::ZERO).unwrap());
    assert!(words(restored.arena(), slice.range(), &arena).iter().all(|&word| word == 0));
    drop(restored.arena().freeze().unwrap());
}

/// A child that is forked at the end of a restore must not wait for threads that only its parent has.
#[test]
fn a_child_forked_as_the_last_chunk_comes_ends_its_arena() {
    let _watchdog = Watchdog::start("forking at the end of a restore");
    let folder = Folder::new("fork-at-the-end");
    let image = image_of(&folder.file("image"), 2);
    for _ in 0..support::scaled(100) {
        let Some(restored) = hybrid(&image, RestoreOptions::default()) else { return };
        let arena = restored.into_arena();
        #[allow(unsafe_code)]
        // SAFETY: the child reads its memory, ends its arena and itself.
        let pid = match unsafe { cowslip::fork(&[&arena]) }.unwrap() {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                let is_right = whole(&arena)[WORDS] == pattern(WORDS);
                drop(arena);
                cowslip_sys::process::exit_now(i32::from(!is_right))
            }
        };
        assert_eq!(status_of(pid), 0);
    }
}

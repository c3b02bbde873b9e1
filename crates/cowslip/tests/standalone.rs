#![allow(unsafe_code)]
//! Images as memory without an arena: the same content in each way, and never any other.

mod support;

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};

use cowslip::image::{Image, OnDamage, SaveOptions, Standalone, StandaloneMode, save};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ErrorKind, Place, Prot};
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::{AsFd, Errno, process};
use support::{Watchdog, eventually, pattern, skip};

const WAYS: [StandaloneMode; 6] = [
    StandaloneMode::Map,
    StandaloneMode::Populate,
    StandaloneMode::UffdCopy4k,
    StandaloneMode::UffdCopy2m,
    StandaloneMode::UffdMove,
    StandaloneMode::Resident,
];
const FAULTING: [StandaloneMode; 3] =
    [StandaloneMode::UffdCopy4k, StandaloneMode::UffdCopy2m, StandaloneMode::UffdMove];
const CHUNKS: usize = 6;
const WORDS: usize = CHUNKS * CHUNK_BYTES / 8;

/// An image of some chunks and their content; the file is removed with this value.
struct Saved {
    path: PathBuf,
    content: Vec<u64>,
    /// The offset of the content from the arena's start.
    offset_bytes: usize,
    guard_bytes: usize,
}

impl Saved {
    fn new(name: &str) -> Self {
        Self::of(Arena::new(ByteCount::mib(32)).unwrap(), name)
    }

    fn of(arena: Arena, name: &str) -> Self {
        let name = format!("cowslip-apart-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut slice = arena.slice::<u64>(WORDS).unwrap();
        for (i, value) in slice.iter_mut().enumerate() {
            let (chunk, page) = (i * 8 / CHUNK_BYTES, i * 8 / page_size_bytes());
            // Whole, whole, zeroes, a third, whole, whole.
            let is_zero = chunk == 2 || (chunk == 3 && !page.is_multiple_of(3));
            *value = if is_zero { 0 } else { pattern(i) | 1 };
        }
        let guard = arena.allocate(ByteCount::mib(1), Prot::NONE).unwrap();
        let frozen = arena.freeze().unwrap();
        let mut proceed = |_| ControlFlow::Continue(());
        // By one thread: chunk after chunk.
        let options = SaveOptions { threads: 1, ..SaveOptions::default() };
        save(&[&frozen], &path, &options, &mut proceed).unwrap();
        let from = |address| address - arena.range().start;
        let (offset_bytes, guard_bytes) = (from(slice.range().start), from(guard.start));
        Self { path, content: slice.to_vec(), offset_bytes, guard_bytes }
    }

    /// Flips a bit of a word in the file, in a chunk that is stored whole.
    fn lie_about(&self, word: usize) {
        let file = File::options().read(true).write(true).open(&self.path).unwrap();
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let told = self.content[word..word + 8].iter().flat_map(|word| word.to_le_bytes());
        let told: Vec<u8> = told.collect();
        let at = bytes.chunks_exact(8).position(|word| word == &told[..8]).unwrap() * 8;
        assert_eq!(bytes[at..at + 64], told, "stored byte for byte");
        file.write_all_at(&[told[0] ^ 4], at as u64).unwrap();
    }

    fn words<'a>(&self, memory: &'a Standalone) -> &'a [u64] {
        let start = memory.range().start + self.offset_bytes;
        // SAFETY: allocated when it was saved, readable; no thread writes to it.
        unsafe { std::slice::from_raw_parts(start as *const u64, WORDS) }
    }

    fn chunk(&self, memory: &Standalone, chunk: usize) -> VirtRange {
        let start = memory.range().start + self.offset_bytes + chunk * CHUNK_BYTES;
        VirtRange::new(start, CHUNK_BYTES)
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// `None`, with a counted message, where the kernel or this process cannot.
fn restore(path: &Path, way: StandaloneMode, on_damage: Option<OnDamage>) -> Option<Standalone> {
    match Image::open(path).unwrap().restore_standalone(0, way, Place::Anywhere, on_damage) {
        Ok(memory) => Some(memory),
        Err(error) if FAULTING.contains(&way) => {
            assert!(matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Denied), "{error}");
            let needs = if way == StandaloneMode::UffdMove { "uffd_move" } else { "userfaultfd" };
            skip(needs, &error.to_string());
            None
        }
        Err(error) => panic!("{way:?}: {error}"),
    }
}

/// The result of a system call that reads `range`.
fn read_by_kernel(range: VirtRange) -> Result<Vec<u8>, Errno> {
    let file = memfile::memfd("test", MemfdKind::Shmem, 0).unwrap();
    // SAFETY: only the kernel reads there, and returns EFAULT where it cannot.
    unsafe { memfile::write_range_at(file.as_fd(), range, 0) }?;
    let mut read = vec![0; range.len];
    assert_eq!(memfile::read_at(file.as_fd(), &mut read, 0), Ok(range.len));
    Ok(read)
}

#[test]
fn each_way_gives_the_content_that_was_saved() {
    let _watchdog = Watchdog::start("restoring apart");
    let saved = Saved::new("content");
    for way in WAYS {
        let Some(memory) = restore(&saved.path, way, None) else { continue };
        let words = saved.words(&memory);
        // From many places at once, then all of it.
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let content = &saved.content;
                scope.spawn(move || {
                    for i in (thread * 511..WORDS).step_by(4999) {
                        assert_eq!(words[i], content[i], "{way:?}: word {i}");
                    }
                });
            }
        });
        assert!(words == saved.content, "{way:?}");
        let page = VirtRange::new(memory.range().start + saved.guard_bytes, page_size_bytes());
        assert_eq!(read_by_kernel(page), Err(Errno::FAULT), "{way:?}: guards hold");
        let place = saved.offset_bytes + memory.range().start + 5 * CHUNK_BYTES;
        // SAFETY: allocated writable; `words` is not used any more.
        unsafe { *(place as *mut u64) = 99 };
        assert_eq!(saved.words(&memory)[5 * CHUNK_BYTES / 8], 99, "{way:?}");
        drop(memory);
        let again = restore(&saved.path, way, None).unwrap();
        assert!(saved.words(&again) == saved.content, "{way:?}: the image is as it was");
    }
}

#[test]
fn the_original_addresses_are_taken_or_refused() {
    // An address that no other memory gets: threads of the other tests map and unmap meanwhile.
    const APART: usize = 0x5000_0000_0000;
    let arena = Arena::builder(ByteCount::mib(32)).at(APART).build().unwrap();
    let saved = Saved::of(arena, "original");
    let image = Image::open(&saved.path).unwrap();
    let start = image.description().arenas[0].start_address as usize;
    for way in WAYS.into_iter().filter(|way| !FAULTING.contains(way)) {
        let memory = image.restore_standalone(0, way, Place::Original, None).unwrap();
        assert_eq!(memory.range().start, start, "{way:?}");
        assert!(saved.words(&memory) == saved.content, "{way:?}");
        let taken = image.restore_standalone(0, way, Place::Original, None).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Busy, "{way:?}: {taken}");
    }
    let missing =
        image.restore_standalone(1, StandaloneMode::Map, Place::Anywhere, None).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Usage, "{missing}");
}

#[test]
fn a_file_that_lies_is_told_of_and_its_chunk_cannot_be_read() {
    let _watchdog = Watchdog::start("a file that lies");
    let saved = Saved::new("lie");
    let word = CHUNK_BYTES / 8 + 77_777;
    saved.lie_about(word);
    for way in FAULTING {
        let told = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&told);
        let on_damage = OnDamage::new(move |error, range| {
            theirs.lock().unwrap().push((error.kind(), range));
            panic!("it must not take the others' memory away");
        });
        let Some(memory) = restore(&saved.path, way, Some(on_damage)) else { continue };
        let range = saved.chunk(&memory, 1);
        for page in [0, 300, 511, 300] {
            let at = VirtRange::new(range.start + page * page_size_bytes(), page_size_bytes());
            assert_eq!(read_by_kernel(at), Err(Errno::FAULT), "{way:?}: page {page}");
        }
        assert_eq!(*told.lock().unwrap(), [(ErrorKind::Corrupt, range)], "{way:?}: told once");
        for (i, value) in saved.content.iter().enumerate() {
            if !range.contains(&raw const saved.words(&memory)[i] as usize) {
                assert_eq!(saved.words(&memory)[i], *value, "{way:?}: the others are whole");
            }
        }
    }
    let resident = Image::open(&saved.path).unwrap().restore_standalone(
        0,
        StandaloneMode::Resident,
        Place::Anywhere,
        None,
    );
    assert_eq!(resident.unwrap_err().kind(), ErrorKind::Corrupt);
    let mapped = restore(&saved.path, StandaloneMode::Map, None).unwrap();
    assert_eq!(saved.words(&mapped)[word], saved.content[word] ^ 4, "as documented: not checked");
}

/// Touches a damaged chunk.
#[test]
fn victim() {
    let Some(path) = std::env::var_os("COWSLIP_TEST_LIE").map(PathBuf::from) else { return };
    let way = FAULTING[std::env::var("COWSLIP_TEST_WAY").unwrap().parse::<usize>().unwrap()];
    let on_damage = OnDamage::new(|error, _| println!("told: {error}"));
    let Some(memory) = restore(&path, way, Some(on_damage)) else { return };
    let start: usize = std::env::var("COWSLIP_TEST_OFFSET").unwrap().parse().unwrap();
    // SAFETY: allocated, readable; the test is that the access fails.
    let word = unsafe { ((memory.range().start + start) as *const u64).read_volatile() };
    println!("seen {word}");
}

#[test]
fn an_access_to_a_damaged_chunk_is_a_sigbus() {
    let saved = Saved::new("sigbus");
    saved.lie_about(CHUNK_BYTES / 8 + 77_777);
    for (number, way) in FAULTING.iter().enumerate() {
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim.args(["--exact", "victim", "--nocapture"]).env("COWSLIP_TEST_LIE", &saved.path);
        victim.env("COWSLIP_TEST_WAY", number.to_string());
        victim.env("COWSLIP_TEST_OFFSET", (saved.offset_bytes + CHUNK_BYTES).to_string());
        let ended = victim.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        if let Some(line) = said.lines().find(|line| line.starts_with("SKIPPED")) {
            println!("{line}");
            continue;
        }
        assert!(said.contains("told: ") && !said.contains("seen "), "{way:?}: {said}");
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{way:?}: {said}");
    }
}

#[test]
fn a_truncated_file_is_an_error_or_a_sigbus() {
    let saved = Saved::new("truncated");
    for way in FAULTING {
        let Some(memory) = restore(&saved.path, way, None) else { continue };
        let file = File::options().read(true).write(true).open(&saved.path).unwrap();
        let whole = std::fs::read(&saved.path).unwrap();
        file.set_len(5000).unwrap();
        for chunk in [1, 4] {
            let page = VirtRange::new(saved.chunk(&memory, chunk).start, page_size_bytes());
            assert_eq!(read_by_kernel(page), Err(Errno::FAULT), "{way:?}");
        }
        file.write_all_at(&whole, 0).unwrap();
    }
    let mapped = restore(&saved.path, StandaloneMode::Map, None).unwrap();
    File::options().write(true).open(&saved.path).unwrap().set_len(5000).unwrap();
    let page = VirtRange::new(saved.chunk(&mapped, 4).start, page_size_bytes());
    assert_eq!(read_by_kernel(page), Err(Errno::FAULT), "it needs its file");
}

/// Returns true if a thread of this process has gone to sleep.
fn sleeps(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    let state = stat.rsplit_once(") ").unwrap().1;
    state.starts_with(['S', 'D'])
}

#[test]
fn who_waits_when_the_memory_goes_is_let_go_and_sees_nothing() {
    let _watchdog = Watchdog::start("teardown");
    let saved = Saved::new("teardown");
    saved.lie_about(CHUNK_BYTES / 8 + 77_777);
    for way in FAULTING {
        let (tell, told) = mpsc::channel();
        let (proceed, may_proceed) = mpsc::channel::<()>();
        let may_proceed = Mutex::new(may_proceed);
        // Keeps the thread that serves faults from serving further ones.
        let on_damage = OnDamage::new(move |_, _| {
            tell.send(()).unwrap();
            let _ = may_proceed.lock().unwrap().recv();
        });
        let Some(memory) = restore(&saved.path, way, Some(on_damage)) else { continue };
        let [damaged, waiting] = [1, 4].map(|chunk| saved.chunk(&memory, chunk));
        let first = |range: VirtRange| VirtRange::new(range.start, page_size_bytes());
        std::thread::scope(|scope| {
            let at_damage = scope.spawn(move || read_by_kernel(first(damaged)));
            told.recv().unwrap();
            let thread = &*Box::leak(Box::new(AtomicI32::new(0)));
            let waits = scope.spawn(move || {
                thread.store(process::thread_id(), Relaxed);
                read_by_kernel(first(waiting))
            });
            eventually("a thread that waits", || {
                let thread = thread.load(Relaxed);
                thread != 0 && sleeps(thread)
            });
            let dropping = scope.spawn(move || drop(memory));
            eventually("a drop that waits", || !dropping.is_finished());
            drop(proceed);
            assert_eq!(at_damage.join().unwrap(), Err(Errno::FAULT), "{way:?}");
            dropping.join().unwrap();
            match waits.join().unwrap() {
                Err(errno) => assert_eq!(errno, Errno::FAULT, "{way:?}"),
                // It was served together with the damaged one.
                Ok(read) => {
                    let expected = &saved.content[4 * CHUNK_BYTES / 8..][..read.len() / 8];
                    let read =
                        read.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap()));
                    assert!(read.eq(expected.iter().copied()), "{way:?}");
                }
            }
        });
    }
}

#[test]
fn children_do_not_have_memory_that_nobody_would_fill() {
    let saved = Saved::new("children");
    for way in FAULTING {
        let Some(memory) = restore(&saved.path, way, None) else { continue };
        let page = VirtRange::new(saved.chunk(&memory, 4).start, page_size_bytes());
        let file = memfile::memfd("test", MemfdKind::Shmem, 0).unwrap();
        // SAFETY: the child makes one system call and ends.
        let pid = unsafe { process::fork() }.unwrap();
        if pid == 0 {
            // SAFETY: only the kernel reads there.
            let read = unsafe { memfile::write_range_at(file.as_fd(), page, 0) };
            process::exit_now(if read == Err(Errno::FAULT) { 7 } else { 1 });
        }
        assert_eq!(process::wait_for(pid).unwrap(), 7 << 8, "{way:?}: EFAULT, not zeroes");
        assert_eq!(saved.words(&memory)[4 * CHUNK_BYTES / 8], saved.content[4 * CHUNK_BYTES / 8]);
    }
}

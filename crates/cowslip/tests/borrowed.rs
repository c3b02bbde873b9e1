#![allow(unsafe_code)]
//! Arenas that borrow from a template, with programs that act at the wrong moment.

mod support;

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use cowslip::image::served::{self, Request};
use cowslip::image::{Image, RestoreOptions, Strategy, Via};
use cowslip::raw::{Departure, PreparedFork, Usage};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ArenaSlice, Backing, ErrorKind, Place, Template};
use cowslip_sys::failpoints::{Op, fail};
use cowslip_sys::{Errno, process};
use support::children::{kill, plain_fork, wait_for_ever};
use support::images::{Folder, proceed, saved};
use support::{PATIENCE, Watchdog, alone, eventually, fork_child, pattern, skip, status_of};

const CHUNKS: usize = 16;
const CHUNK_WORDS: usize = CHUNK_BYTES / 8;
const WORDS: usize = CHUNKS * CHUNK_WORDS;
const BACKINGS: [Backing; 2] = [Backing::Thp, Backing::Base];
/// By this time an allowed thaw has long begun.
const TOO_EARLY: Duration = Duration::from_millis(300);

/// An arena, its words, and the template made from it.
struct Lender {
    arena: Arena,
    words: ArenaSlice<u64>,
    template: Template,
}

impl Lender {
    /// The word at each index for which `has` holds is a pattern; memory that was never written is
    /// a hole.
    fn new(backing: Backing, has: fn(usize) -> bool) -> Self {
        let arena = Arena::builder(ByteCount::mib(64)).backing(backing).build().unwrap();
        let mut words = arena.slice::<u64>(WORDS).unwrap();
        (0..WORDS).filter(|i| has(*i)).for_each(|i| words[i] = pattern(i) | 1);
        let template = arena.freeze().unwrap().into_template().unwrap();
        Self { arena, words, template }
    }

    fn full(backing: Backing) -> Self {
        Self::new(backing, |_| true)
    }

    /// An arena that borrows and is being copied, and the place of its words. `None`, with a message, if nothing is
    /// borrowed.
    fn lend(&self, backing: Backing) -> Option<(Arena, Words)> {
        let lent = self.lend_held(backing)?;
        lent.0.raw().resume_thaw();
        Some(lent)
    }

    /// Like [`Self::lend`], with the copying held up before it begins.
    fn lend_held(&self, backing: Backing) -> Option<(Arena, Words)> {
        let builder = self.template.arena_builder(Place::Anywhere).unwrap().backing(backing);
        let arena = self.template.restore(builder).unwrap();
        if !arena.raw().start_service() {
            skip("userfaultfd", "all is copied first without it");
            return None;
        }
        arena.raw().pause_thaw();
        arena.wait_live(Duration::ZERO);
        let words = Words(self.template.range_in(&arena, self.words.range()));
        Some((arena, words))
    }

    /// The memory that its file takes.
    fn file_bytes(&self) -> u64 {
        file_bytes(&self.arena)
    }
}

fn file_bytes(arena: &Arena) -> u64 {
    let bytes =
        |number: u64| std::fs::metadata(format!("/proc/self/fd/{number}")).unwrap().blocks() * 512;
    arena.metrics().descriptors().map(bytes).sum()
}

/// Words that other threads may change at any time.
#[derive(Clone, Copy)]
struct Words(VirtRange);

impl Words {
    fn place(self, i: usize) -> *mut u64 {
        assert!(i < WORDS);
        (self.0.start as *mut u64).wrapping_add(i)
    }

    fn get(self, i: usize) -> u64 {
        // SAFETY: memory of an arena that its test keeps.
        unsafe { self.place(i).read_volatile() }
    }

    fn set(self, i: usize, value: u64) {
        // SAFETY: as above.
        unsafe { self.place(i).write_volatile(value) }
    }

    fn are(self, right: impl Fn(usize) -> u64) -> bool {
        (0..WORDS).all(|i| self.get(i) == right(i))
    }

    fn chunk(self, i: usize) -> VirtRange {
        VirtRange::new(self.0.start + i * CHUNK_BYTES, CHUNK_BYTES)
    }
}

fn full(i: usize) -> u64 {
    pattern(i) | 1
}

/// True for data: every other chunk is a hole, and so is the second half of every chunk, where
/// pages are small.
fn has_holes(i: usize) -> bool {
    (i / CHUNK_WORDS).is_multiple_of(2) && i % CHUNK_WORDS < CHUNK_WORDS / 2
}

fn of_holes(i: usize) -> u64 {
    if has_holes(i) { full(i) } else { 0 }
}

/// Forks, makes the borrowed memory its own, writes to all of it, and ends.
fn parent_of_an_heir(backing: Backing, report: &PipeWriter) -> ! {
    let lender = Lender::new(backing, has_holes);
    let Some((arena, words)) = lender.lend_held(backing) else { process::exit_now(1) };
    let (end, lives) = std::io::pipe().unwrap();
    let borrowed = arena.metrics().frozen_chunks;
    let heir = || {
        // Waits for the parent's end: its memory goes before its descriptors.
        drop(lives);
        let _ = (&end).read(&mut [0]);
        // Reading a hole of the lender would fill it.
        let has_data = || (0..WORDS).filter(|i| has_holes(*i)).all(|i| words.get(i) == full(i));
        let before = has_data();
        eventually("the parent is gone", || arena.raw().adopt().unwrap());
        let adopted = has_data();
        let is_live = arena.raw().start_service() && arena.wait_live(PATIENCE);
        let said = match (before, adopted, is_live, words.are(of_holes)) {
            (true, true, true, true) => "right".to_owned(),
            wrong => format!("{wrong:?}"),
        };
        (&*report).write_all(said.as_bytes()).is_ok()
    };
    // SAFETY: the child continues as the program, with the only thread, which made it.
    match unsafe { cowslip::fork(&[&arena]) }.unwrap() {
        cowslip::Fork::Child => process::exit_now(i32::from(!heir())),
        cowslip::Fork::Parent(_) => {}
    }
    let read_by_the_child = arena.metrics().frozen_chunks - borrowed;
    arena.raw().resume_thaw();
    let left = || arena.metrics().frozen_chunks;
    eventually("what was borrowed is its own", || left() == read_by_the_child);
    (0..WORDS).for_each(|i| words.set(i, 0xdead));
    process::exit_now(0);
}

#[test]
fn i2_a_child_that_takes_over_keeps_what_it_was_forked_with() {
    let _alone = alone();
    let _watchdog = Watchdog::start("an heir of borrowed memory");
    if Lender::full(Backing::Base).lend(Backing::Base).is_none() {
        return;
    }
    for backing in BACKINGS {
        let (mut result, report): (PipeReader, PipeWriter) = std::io::pipe().unwrap();
        match plain_fork() {
            0 => parent_of_an_heir(backing, &report),
            program => {
                drop(report);
                assert_eq!(status_of(program), 0);
                let mut said = String::new();
                result.read_to_string(&mut said).unwrap();
                assert_eq!(said, "right", "{backing:?}");
            }
        }
    }
}

static WRITTEN: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

extern "C" fn write_all_over(_: i32) {
    let [start, len, next] = &WRITTEN;
    for _ in 0..64 {
        let at = next.fetch_add(37 * page_size_bytes() + 8, Relaxed) % len.load(Relaxed);
        // SAFETY: a word of memory that the test below keeps.
        unsafe { ((start.load(Relaxed) + at / 8 * 8) as *mut u64).write_volatile(1) };
    }
}

/// Calls `act` in this thread while it receives signals with a handler that writes to `words`.
fn among_signals<T>(words: Words, act: impl FnOnce() -> T) -> T {
    WRITTEN[0].store(words.0.start, Relaxed);
    WRITTEN[1].store(words.0.len, Relaxed);
    let handler = write_all_over as extern "C" fn(i32);
    // SAFETY: the handler stores to memory that exists, and calls nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    // SAFETY: returns the thread's handle.
    let this = unsafe { libc::pthread_self() };
    let is_over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                // SAFETY: that thread waits for this one.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        let done = act();
        is_over.store(true, Relaxed);
        done
    });
    // SAFETY: as before.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_DFL) };
    done
}

#[test]
fn i6_a_signal_handler_may_write_while_a_freeze_ends_the_borrowing() {
    let _alone = alone();
    let _watchdog = Watchdog::start("signals in a freeze");
    let lender = Lender::full(Backing::Thp);
    for _ in 0..20 {
        let Some((arena, words)) = lender.lend_held(Backing::Thp) else { return };
        let frozen = among_signals(words, || {
            arena.raw().resume_thaw();
            arena.freeze()
        });
        drop(frozen.unwrap());
        assert!(words.are(|i| if words.get(i) == 1 { 1 } else { full(i) }));
    }
}

#[test]
fn i6_a_signal_handler_may_write_while_memory_leaves() {
    let _alone = alone();
    let _watchdog = Watchdog::start("signals in a departure");
    let lender = Lender::full(Backing::Thp);
    for _ in 0..20 {
        let Some((arena, words)) = lender.lend(Backing::Thp) else { return };
        assert!(arena.wait_live(PATIENCE));
        // SAFETY: threads may write there meanwhile.
        among_signals(words, || unsafe { arena.raw().detach(words.0, Departure::Advice) }).unwrap();
        assert!(words.are(|i| if words.get(i) == 1 { 1 } else { full(i) }));
    }
}

static STOOD_ON: OnceLock<Arena> = OnceLock::new();
static ANSWER: OnceLock<Result<Vec<u64>, String>> = OnceLock::new();

/// Freezes the arena that contains its stack, and never ends: a thread's end waits for a futex in its stack.
extern "C" fn freeze_what_it_stands_on(first: *mut libc::c_void) -> *mut libc::c_void {
    let arena = STOOD_ON.get().unwrap();
    let frozen = arena.freeze_timeout(PATIENCE);
    let shown = frozen.as_ref().map_err(ToString::to_string).map(|view| {
        let start = view.view_address(first as usize) as *const u64;
        // SAFETY: the view shows all of the arena, and lives for ever.
        (0..WORDS).map(|i| unsafe { start.add(i).read_volatile() }).collect()
    });
    std::mem::forget(frozen);
    ANSWER.set(shown).unwrap();
    wait_for_ever()
}

#[test]
fn i6_a_thread_freezes_the_borrowed_memory_that_its_stack_is_in() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a stack in borrowed memory");
    let lender = Lender::full(Backing::Thp);
    let Some((arena, words)) = lender.lend_held(Backing::Thp) else { return };
    arena.raw().resume_thaw();
    STOOD_ON.set(arena).unwrap();
    let stack = VirtRange::new(words.chunk(9).start + 4096, 3 * CHUNK_BYTES);
    // SAFETY: the thread's stack is memory that no other thread writes to, and that stays for ever.
    unsafe {
        let mut with: libc::pthread_attr_t = std::mem::zeroed();
        assert_eq!(libc::pthread_attr_init(&raw mut with), 0);
        assert_eq!(libc::pthread_attr_setstack(&raw mut with, stack.start as *mut _, stack.len), 0);
        let (mut thread, first) = (0, words.0.start as *mut libc::c_void);
        let made =
            libc::pthread_create(&raw mut thread, &raw const with, freeze_what_it_stands_on, first);
        assert_eq!(made, 0);
    }
    eventually("it is frozen", || ANSWER.get().is_some());
    let shown = ANSWER.get().unwrap().as_ref().unwrap();
    let is_stack = |i: usize| stack.contains(words.0.start + i * 8);
    assert!(shown.iter().enumerate().all(|(i, &word)| is_stack(i) || word == full(i)));
}

#[test]
fn a_child_may_not_freeze_what_its_parent_borrows() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a child's freeze");
    let lender = Lender::full(Backing::Thp);
    let Some((arena, words)) = lender.lend_held(Backing::Thp) else { return };
    let kinds = || arena.freeze().is_err_and(|error| error.kind() == ErrorKind::Busy);
    let child = fork_child(&[&arena], || kinds() && words.are(full)).unwrap();
    assert_eq!(status_of(child), 0);
}

#[test]
fn holes_of_the_base_cost_the_lender_nothing() {
    let _alone = alone();
    let _watchdog = Watchdog::start("holes");
    for backing in BACKINGS {
        let lender = Lender::new(backing, |i| i == 0);
        let before = lender.file_bytes();
        let Some((arena, words)) = lender.lend_held(backing) else { return };
        assert!(words.are(|i| if i == 0 { full(0) } else { 0 }));
        // Where pages are small, the pages beside the word's are holes too.
        let most = if lender.arena.pages().is_huge() { before } else { CHUNK_BYTES as u64 };
        assert!(lender.file_bytes() <= most, "{backing:?}: reads");
        words.set(5 * CHUNK_WORDS, 7);
        words.set(CHUNK_WORDS - 1, 8);
        arena.raw().resume_thaw();
        assert!(arena.wait_live(PATIENCE));
        assert_eq!((words.get(5 * CHUNK_WORDS), words.get(CHUNK_WORDS - 1)), (7, 8));
        assert_eq!(lender.words[5 * CHUNK_WORDS], 0);
    }
}

#[test]
fn a_child_that_has_nothing_of_the_base_does_not_keep_it() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a child of fork(2)");
    let lender = Lender::full(Backing::Thp);
    let source = lender.arena.clone();
    let Some((arena, mine)) = lender.lend_held(Backing::Thp) else { return };
    drop(lender);
    let child = match plain_fork() {
        0 => wait_for_ever(),
        pid => pid,
    };
    let was_free = source.wait_live(TOO_EARLY);
    arena.raw().resume_thaw();
    let is_right = arena.wait_live(PATIENCE) && mine.are(full);
    let is_free = source.wait_live(PATIENCE);
    kill(child);
    status_of(child);
    assert!(!was_free && is_right && is_free, "{was_free} {is_right} {is_free}");
}

#[test]
fn the_lender_is_free_once_nothing_is_mapped_that_left_the_arena() {
    let _alone = alone();
    let _watchdog = Watchdog::start("what left and went");
    for discarded in [false, true] {
        let lender = Lender::full(Backing::Thp);
        let source = lender.arena.clone();
        let Some((arena, mine)) = lender.lend_held(Backing::Thp) else { return };
        drop(lender);
        // The last chunk to be copied.
        let part = mine.chunk(CHUNKS - 1);
        {
            // There is no memory for a copy of it.
            let _rule = fail(Op::Mmap, 0, u32::MAX, Errno::NOMEM);
            // SAFETY: no code refers to it meanwhile.
            unsafe { arena.raw().detach(part, Departure::Advice) }.unwrap();
        }
        assert_eq!(arena.raw().parts(part)[0].1, Usage::Left);
        arena.raw().resume_thaw();
        assert!(arena.wait_live(PATIENCE) && mine.are(full));
        assert!(!source.wait_live(TOO_EARLY), "what left is mapped still");
        // SAFETY: no other code uses it.
        unsafe { if discarded { arena.discard(part) } else { arena.release(part) } }.unwrap();
        assert!(source.wait_live(PATIENCE), "nothing of the base is mapped");
    }
}

/// The open descriptors, and their files.
fn descriptors() -> Vec<String> {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut names: Vec<_> = names
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.path()).ok()?;
            let name = entry.file_name().into_string().ok()?;
            Some(format!("{name} {}", target.display()))
        })
        .filter(|name| !name.contains("/proc/"))
        .collect();
    names.sort();
    names
}

#[test]
fn a_grandchild_that_shares_descriptors_closes_none_of_the_childs() {
    let _alone = alone();
    let _watchdog = Watchdog::start("shared descriptors");
    let lender = Lender::full(Backing::Thp);
    let Some((arena, words)) = lender.lend_held(Backing::Thp) else { return };
    let child = fork_child(&[&arena], || {
        let before = descriptors();
        let prepared = PreparedFork::prepare(&[&arena]).unwrap();
        let flags = libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: like fork(2), with a shared table of descriptors.
        match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
            0 => {
                prepared.in_child_sharing_descriptors();
                // SAFETY: this process never uses it again.
                drop(unsafe { std::ptr::read(&raw const arena) });
                process::exit_now(0)
            }
            pid => {
                prepared.in_parent();
                status_of(pid as i32) == 0 && descriptors() == before && words.are(full)
            }
        }
    });
    assert_eq!(status_of(child.unwrap()), 0);
}

#[test]
fn an_eager_restore_by_way_of_a_server_owns_all_of_it() {
    let _alone = alone();
    let _watchdog = Watchdog::start("an eager restore");
    let folder = Folder::new("eager");
    let [path, socket] = ["image", "socket"].map(|name| folder.file(name));
    let source = Arena::new(ByteCount::mib(64)).unwrap();
    let mut words = source.slice::<u64>(WORDS).unwrap();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = full(i));
    let frozen = source.freeze().unwrap();
    saved(&frozen, &path);
    let template = frozen.into_template().unwrap();
    let image = Image::open(&path).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (stream, _) = listener.accept().unwrap();
            let mut asked = [0; Request::BYTES];
            (&stream).read_exact(&mut asked).unwrap();
            let asked = Request::parse(&asked).unwrap();
            assert_eq!(asked, Request::Content { image: image.identity(), arena: 0 });
            served::hand_out(&template, &stream).unwrap();
        });
        let (strategy, via) = (Strategy::Eager, Via::Server(socket.clone()));
        let options = RestoreOptions { strategy, via, ..RestoreOptions::default() };
        let restored = image.restore(0, &options, &mut proceed).unwrap();
        assert_eq!(restored.strategy(), Strategy::Resident);
        assert_eq!(restored.arena().metrics().frozen_chunks, 0, "nothing is borrowed");
        let start = restored.arena().range().start + (words.range().start - source.range().start);
        assert!(Words(VirtRange::new(start, words.range().len)).are(full));
    });
}

const LOSER: &str = "COWSLIP_TEST_LOSES_DESCRIPTORS";

/// Not a test: a process that closes descriptors that are not its own.
#[test]
fn loses_descriptors() {
    let Some(how) = std::env::var_os(LOSER) else { return };
    let _watchdog = Watchdog::start("closed descriptors");
    let lender = Lender::full(Backing::Thp);
    let Some((arena, words)) = lender.lend_held(Backing::Thp) else { return };
    words.set(7, 70);
    let right = |i: usize| if i == 7 { 70 } else { full(i) };
    let mine = tempfile();
    let mut lost = Vec::new();
    while let Some(fd) =
        cowslip_sys::reserved_fd::next_held(lost.last().map_or(0, |fd| fd + 1), i32::MAX)
    {
        // SAFETY: acts like a program that closes all descriptors that it does not know.
        unsafe {
            libc::syscall(libc::SYS_close, fd);
            if how == "replaced" {
                libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&mine), fd);
            }
        }
        lost.push(fd);
    }
    assert!(lost.len() > 4, "{lost:?}");
    assert!(words.are(right));
    arena.raw().resume_thaw();
    for patience in [Duration::ZERO, TOO_EARLY] {
        match arena.freeze_timeout(patience) {
            Ok(view) => {
                let start = view.view_address(words.0.start) as *const u64;
                // SAFETY: the view is mapped.
                let shown = |i: usize| unsafe { start.add(i).read_volatile() };
                assert!((0..WORDS).all(|i| shown(i) == right(i)));
            }
            Err(error) => assert!(error.to_string().len() > 20, "{error}"),
        }
        assert!(words.are(right));
    }
    words.set(8, 80);
    let right = |i: usize| if i == 8 { 80 } else { right(i) };
    if let Ok(pid) = fork_child(&[&arena], || words.are(right)) {
        assert_eq!(status_of(pid), 0);
    }
    assert!(words.are(right) && lender.words.iter().enumerate().all(|(i, word)| *word == full(i)));
    assert_eq!(mine.metadata().unwrap().len(), 3, "a file of the program's is as it was");
    std::io::stdout().write_all(b"all is right\n").unwrap();
    // A normal end would close descriptors that belong to others by now.
    process::exit_now(0);
}

/// A file without a name, three bytes long.
fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("cowslip-borrowed-{}", process::pid()));
    let options = &mut std::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all(b"own").unwrap();
    file
}

#[test]
fn a_program_may_close_all_descriptors_while_memory_is_borrowed() {
    let _alone = alone();
    for how in ["closed", "replaced"] {
        let mut loser = std::process::Command::new(std::env::current_exe().unwrap());
        loser.args(["loses_descriptors", "--exact", "--nocapture"]).env(LOSER, how);
        let ran = loser.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        let is_right = ran.status.success() && said.contains("all is right");
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(is_right || said.contains("SKIPPED"), "{how}: {said}\n{errors}");
    }
}

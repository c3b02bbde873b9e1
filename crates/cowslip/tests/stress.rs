#![allow(unsafe_code)]
//! Everything at once: threads that count, receive, allocate, drop and protect; freezes, views, forks of every kind,
//! paused and resumed thaws. At the end every sum is exact.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cowslip::raw::Departure;
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ErrorKind, Prot};
use support::children::{Child, KINDS};
use support::{Counters, PATIENCE, Scatter, Watchdog, Writers, checksum, eventually, scaled, skip};

const TIME: Duration = Duration::from_secs(15);
const ROUNDS: usize = 2000;

struct Stage {
    arena: Arena,
    stop: AtomicBool,
    received: AtomicU64,
    allocated: AtomicU64,
}

impl Stage {
    /// `read(2)` and `recv(2)` into the arena, across page and chunk borders.
    fn receive(&self) {
        let mut memory = self.arena.slice::<u8>(8 << 20).unwrap();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let mut scatter = Scatter(0xfeed);
        let mut sent = [0u8; 300];
        while !self.stop.load(Relaxed) {
            let stamp = scatter.next();
            sent.iter_mut().enumerate().for_each(|(i, byte)| *byte = (stamp >> (i % 57)) as u8);
            near.write_all(&sent).unwrap();
            let at = scatter.next() as usize % (memory.len() - sent.len());
            far.read_exact(&mut memory[at..at + sent.len()]).unwrap();
            assert_eq!(memory[at..at + sent.len()], sent);
            self.received.fetch_add(1, Relaxed);
        }
    }

    /// Allocates memory and frees it; drops and guards parts of it meanwhile.
    fn allocate(&self) {
        let page = page_size_bytes();
        let mut scatter = Scatter(0xa110c);
        while !self.stop.load(Relaxed) {
            let len = 4 * page + scatter.next() as usize % (3 * CHUNK_BYTES);
            let mut memory = match self.arena.slice::<u8>(len) {
                Ok(memory) => memory,
                Err(error) => {
                    // All free memory may be frozen at the moment.
                    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                    std::thread::yield_now();
                    continue;
                }
            };
            assert!(memory.iter().all(|&byte| byte == 0), "handed out clean");
            memory.fill(0x5a);
            let pages = memory.range().len / page;
            let first = scatter.next() as usize % (pages - 2);
            let count = 1 + scatter.next() as usize % (pages - first - 1);
            let part = VirtRange::new(memory.range().start + first * page, count * page);
            let inside = first * page..((first + count) * page).min(len);
            // SAFETY: only this thread uses the memory, and not the guarded part of it.
            unsafe {
                self.arena.protect(part, Prot::NONE).unwrap();
                self.arena.protect(part, Prot::RW).unwrap();
            }
            assert!(memory[inside.clone()].iter().all(|&byte| byte == 0x5a));
            // SAFETY: only this thread uses the memory.
            unsafe { self.arena.discard(part) }.unwrap();
            assert!(memory[inside.clone()].iter().all(|&byte| byte == 0), "dropped");
            assert!(memory[..inside.start].iter().all(|&byte| byte == 0x5a), "kept before it");
            assert!(memory[inside.end..].iter().all(|&byte| byte == 0x5a), "kept after it");
            self.allocated.fetch_add(1, Relaxed);
        }
    }
}

/// One step: a view shows one moment, and so does a child of any kind.
fn round(arena: &Arena, counters: &Counters, scatter: &mut Scatter, children: &mut Vec<Child>) {
    let pick = scatter.next();
    if pick.is_multiple_of(8) {
        arena.raw().pause_thaw();
    } else if pick % 8 == 1 {
        arena.raw().resume_thaw();
    }
    let is_enough = children.len() > pick as usize % 6;
    if is_enough || pick >> 8 & 3 == 0 {
        for child in children.drain(..) {
            let named = format!("{child:?}");
            assert!(child.ends_right(), "{named}");
        }
    }
    if children.is_empty() && pick >> 10 & 1 == 0 {
        arena.raw().resume_thaw();
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        let first = checksum(frozen.slice(counters.slice()));
        if pick >> 11 & 1 == 0 {
            // A fork while a view lives shares the private pages.
            children.push(child(arena, counters, scatter));
        }
        assert_eq!(first, checksum(frozen.slice(counters.slice())));
    } else {
        children.push(child(arena, counters, scatter));
    }
}

fn child(arena: &Arena, counters: &Counters, scatter: &mut Scatter) -> Child {
    let kind = KINDS[scatter.next() as usize % KINDS.len()];
    let sum = || checksum(counters.slice());
    let check = || {
        let first = sum();
        counters.at(0).fetch_add(1, Relaxed);
        let second = sum();
        counters.at(0).fetch_sub(1, Relaxed);
        first != second && first == sum()
    };
    Child::fork(arena, kind, check).unwrap()
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn everything_at_once() {
    let _watchdog = Watchdog::start("everything at once");
    let arena = Arena::new(ByteCount::mib(256)).unwrap();
    if !arena.raw().start_service() {
        skip(
            "userfaultfd",
            "nothing is thawed while threads write; tests/without_userfaultfd.rs does without",
        );
        return;
    }
    let counters = Counters::new(&arena, ByteCount::mib(8));
    let stage = Stage {
        arena: arena.clone(),
        stop: AtomicBool::new(false),
        received: AtomicU64::new(0),
        allocated: AtomicU64::new(0),
    };
    let writers = Writers::start(&counters, 2);
    let mut rounds = 0;
    // Also when this thread fails: then it waits for the others.
    let stop = Stop(&stage.stop);
    std::thread::scope(|scope| {
        let _stop = stop;
        let threads = [scope.spawn(|| stage.receive()), scope.spawn(|| stage.allocate())];
        let (mut scatter, mut children) = (Scatter(20_061), Vec::new());
        let deadline = Instant::now() + TIME;
        while rounds < scaled(ROUNDS) && Instant::now() < deadline {
            round(&arena, &counters, &mut scatter, &mut children);
            rounds += 1;
            assert!(threads.iter().all(|thread| !thread.is_finished()), "a thread failed");
        }
        for child in children {
            assert!(child.ends_right());
        }
        arena.raw().resume_thaw();
        assert!(arena.wait_live(PATIENCE), "{:?}", arena.metrics());
        eventually("each thread got on", || {
            stage.received.load(Relaxed) > 0 && stage.allocated.load(Relaxed) > 0
        });
    });
    let written = writers.stop();
    assert_eq!(counters.sum(), written, "every update is there");
    // Before that, moves and releases may have made all memory live.
    drop(arena.freeze_timeout(PATIENCE).unwrap());
    assert!(arena.wait_live(PATIENCE));
    let metrics = arena.metrics();
    println!(
        "{rounds} rounds, {written} updates, {} received, {} allocated, {} freezes, {} forks, {} thaws",
        stage.received.into_inner(),
        stage.allocated.into_inner(),
        metrics.freezes,
        metrics.forks,
        metrics.thaws
    );
    assert!(metrics.freezes > 0 && metrics.forks > 0 && metrics.thaws > 0);
    assert_eq!(metrics.failed_freezes + metrics.failed_thaw_chunks, 0, "{metrics:?}");
}

/// Pages without rights stay out of reach while they leave the arena: a stray pointer that is followed just then still
/// ends the program.
#[test]
fn i5_memory_without_rights_is_never_readable_while_it_leaves() {
    let _watchdog = Watchdog::start("memory without rights leaves");
    if !shows_memory_without_rights() {
        return skip("forced_reads", "/proc/self/mem does not show memory without rights");
    }
    let page = page_size_bytes();
    let looked = AtomicU64::new(0);
    for round in 0..50 {
        let arena = Arena::new(ByteCount::mib(8)).unwrap();
        let range = arena.allocate(ByteCount::mib(4), Prot::RW).unwrap();
        let guard = VirtRange::new(range.start + CHUNK_BYTES / 2, CHUNK_BYTES);
        let fill = |from: usize, byte| {
            // SAFETY: memory that was just allocated. Only this thread uses it.
            unsafe { (from as *mut u8).write_bytes(byte, 2 * page) }
        };
        fill(guard.start, 1);
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        fill(guard.start + page, 2);
        // SAFETY: no code uses it until it has its rights again.
        unsafe { arena.protect(guard, Prot::NONE) }.unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let before = looked.load(Relaxed);
            let watcher = scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let is_readable = cowslip_sys::user_memory::is_readable(guard.start, 1);
                    assert!(!is_readable, "round {round}");
                    looked.fetch_add(1, Relaxed);
                }
            });
            eventually("the watcher looks", || looked.load(Relaxed) > before);
            // SAFETY: memory that the arena has allocated.
            unsafe { arena.raw().detach(range, Departure::Advice) }.unwrap();
            stop.store(true, Relaxed);
            watcher.join().unwrap();
        });
        drop(frozen);
        // SAFETY: as above.
        let bytes = unsafe {
            arena.protect(guard, Prot::READ).unwrap();
            std::slice::from_raw_parts(guard.start as *const u8, 4 * page)
        };
        let byte_of = |page: usize| [1, 2, 2, 0][page];
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == byte_of(at / page)));
    }
}

/// A kernel may be told to show it to tracers alone (`proc_mem.force_override=ptrace`).
fn shows_memory_without_rights() -> bool {
    let arena = Arena::new(ByteCount::mib(4)).unwrap();
    let guard = arena.allocate(ByteCount::mib(2), Prot::NONE).unwrap();
    let memory = File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut [0], guard.start as u64).is_ok()
}

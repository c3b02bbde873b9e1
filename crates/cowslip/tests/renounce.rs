#![allow(unsafe_code)]
//! A child that is about to lose rights renounces its parent's arena: its memory still works, without a descriptor, and
//! no memory of the parent becomes live in a file that the child could expose.

mod support;

use std::io::{PipeWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip::raw::Departure;
#[cfg(feature = "failpoints")]
use cowslip::raw::Usage;
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, Prot};
use cowslip_sys::process;
use support::{
    Counters, PATIENCE, Watchdog, alone, eventually, fork_child, scaled, skip, status_of,
};

fn fill(counters: &Counters, value: u64) {
    (0..counters.len()).for_each(|i| counters.at(i).store(value + i as u64, Relaxed));
}

fn holds(counters: &Counters, value: u64) -> bool {
    (0..counters.len()).all(|i| counters.at(i).load(Relaxed) == value + i as u64)
}

/// Device, in the form of `/proc/self/maps`, and inode.
type File = (String, u64);

/// The files that a range is mapped from.
fn mapped_files(range: VirtRange) -> Vec<File> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found: Vec<File> = maps
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let start = usize::from_str_radix(start, 16).ok()?;
            let end = usize::from_str_radix(end, 16).ok()?;
            let is_inside = !VirtRange::between(start, end).intersect(range).is_empty();
            let file = (words.nth(2)?.to_owned(), words.next()?.parse().ok()?);
            (is_inside && file.1 != 0).then_some(file)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// True if none of the files is open.
fn are_closed(files: &[File]) -> bool {
    let is_one = |entry: std::fs::DirEntry| {
        let Ok(file) = std::fs::metadata(entry.path()) else { return false };
        let device = format!("{:02x}:{:02x}", libc::major(file.dev()), libc::minor(file.dev()));
        files.contains(&(device, file.ino()))
    };
    !std::fs::read_dir("/proc/self/fd").unwrap().flatten().any(is_one)
}

#[test]
fn a_reader_that_renounced_keeps_its_memory_without_a_descriptor() {
    let _watchdog = Watchdog::start("a reader that renounced");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    a_reader_renounces(&arena);
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    match arena.raw().start_service() {
        true => a_reader_renounces(&arena),
        false => {
            skip("userfaultfd", "no service thread: pages are given back as in the first arena")
        }
    }
}

fn a_reader_renounces(arena: &Arena) {
    let (counters, more) =
        (Counters::new(arena, ByteCount::mib(8)), Counters::new(arena, ByteCount::mib(4)));
    fill(&counters, 1);
    fill(&more, 2);
    let range = counters.slice().range();
    let child = fork_child(&[arena], || {
        let files = mapped_files(arena.range());
        let was_open = !are_closed(&files);
        arena.raw().renounce().unwrap();
        let closed = was_open && are_closed(&files);
        let is_reader = !arena.raw().adopt().unwrap() && arena.raw().is_reader();
        fill(&more, 3);
        // One part reads as zeroes, another leaves, the rest stays.
        let part = VirtRange::new(range.start, 3 * page_size_bytes());
        // SAFETY: no code refers to that memory meanwhile.
        unsafe { arena.discard(part) }.unwrap();
        let words = part.len / 8;
        let is_zero = (0..words).all(|i| counters.at(i).load(Relaxed) == 0);
        (0..words).for_each(|i| counters.at(i).store(1 + i as u64, Relaxed));
        let chunk = VirtRange::new(range.start + CHUNK_BYTES, CHUNK_BYTES + page_size_bytes());
        // SAFETY: its content stays.
        unsafe { arena.raw().detach(chunk, Departure::Advice) }.unwrap();
        let grandchild = fork_child(&[arena], || {
            arena.raw().renounce().unwrap();
            holds(&counters, 1) && holds(&more, 3)
        });
        let right = status_of(grandchild.unwrap()) == 0;
        closed && is_reader && is_zero && right && holds(&counters, 1) && holds(&more, 3)
    });
    let child = child.unwrap();
    fill(&counters, 4);
    assert_eq!(status_of(child), 0);
    assert!(holds(&counters, 4) && holds(&more, 2));
}

#[test]
fn emptied_memory_leaves_a_reader_that_renounced() {
    let _watchdog = Watchdog::start("emptied memory that leaves");
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(4));
    fill(&counters, 1);
    // An earlier child keeps the memory frozen.
    let (mut wait, mut go) = std::io::pipe().unwrap();
    let older = fork_child(&[&arena], || {
        let _ = wait.read(&mut [0]);
        holds(&counters, 1)
    });
    let chunk = VirtRange::new(counters.slice().range().start, CHUNK_BYTES);
    // SAFETY: no code refers to that memory meanwhile.
    unsafe { arena.discard(chunk) }.unwrap();
    counters.at(7).store(77, Relaxed);
    let child = fork_child(&[&arena], || {
        arena.raw().renounce().unwrap();
        // SAFETY: its content stays.
        unsafe { arena.raw().detach(chunk, Departure::Advice) }.unwrap();
        let expected = |i| if i == 7 { 77 } else { 0 };
        (0..CHUNK_BYTES / 8).all(|i| counters.at(i).load(Relaxed) == expected(i))
    });
    assert_eq!(status_of(child.unwrap()), 0);
    go.write_all(&[1]).unwrap();
    assert_eq!(status_of(older.unwrap()), 0);
}

/// The userfaultfds, files of arenas, tokens and the like that are open.
fn open_descriptors() -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut open: Vec<_> = open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let ours = ["/memfd:cowslip", "/#", "anon_inode:", "/proc/"];
    open.retain(|link| ours.iter().any(|start| link.to_string_lossy().starts_with(start)));
    open.retain(|link| !link.ends_with("fd"));
    open.into_iter().map(|link| link.to_string_lossy().into_owned()).collect()
}

#[test]
fn a_child_has_no_descriptor_that_another_thread_opens() {
    let _watchdog = Watchdog::start("descriptors of other threads");
    let _alone = alone();
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(2));
    // Written before the first freeze: memory that is written afterwards needs another file.
    fill(&counters, 1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let other = Arena::new(ByteCount::mib(4)).unwrap();
                    other.raw().start_service();
                }
            });
        }
        let wrong = (0..scaled(300)).find(|_| {
            let child = fork_child(&[&arena], || {
                let open = open_descriptors();
                // The file, and the token of all processes that map it.
                if open.len() != 2 {
                    let _ = writeln!(std::io::stderr(), "open in the child: {open:?}");
                }
                open.len() == 2 && holds(&counters, 1)
            });
            status_of(child.unwrap()) != 0
        });
        is_over.store(true, Relaxed);
        assert_eq!(wrong, None, "the round");
    });
}

#[test]
fn the_owner_renounces_nothing() {
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(2));
    arena.raw().renounce().unwrap();
    fill(&counters, 1);
    assert!(holds(&counters, 1) && !arena.raw().is_reader());
}

#[test]
fn nothing_becomes_live_in_a_file_that_a_reader_exposed() {
    let _watchdog = Watchdog::start("an exposed file");
    let _alone = alone();
    let arena = Arena::new(ByteCount::mib(128)).unwrap();
    if !arena.raw().start_service() {
        skip("userfaultfd", "nothing is thawed in the background");
        return;
    }
    let counters = Counters::new(&arena, ByteCount::mib(16));
    let freed = arena.allocate(ByteCount::mib(8), Prot::RW).unwrap();
    for round in 0..scaled(20) as u64 {
        fill(&counters, round);
        let before = mapped_files(arena.range());
        let (hear, tell) = std::io::pipe().unwrap();
        let (child_hears, parent_tells) = std::io::pipe().unwrap();
        let child = fork_child(&[&arena], || {
            arena.raw().renounce().unwrap();
            (&tell).write_all(&[1]).unwrap();
            let heard = (&child_hears).read_exact(&mut [0]).is_ok();
            heard && holds(&counters, round)
        });
        let child = child.unwrap();
        (&hear).read_exact(&mut [0]).unwrap();
        // Some of it is written while the child reads, some afterwards, and some never.
        (0..counters.len() / 4).for_each(|i| counters.at(i).store(round + i as u64, Relaxed));
        (&parent_tells).write_all(&[1]).unwrap();
        assert_eq!(status_of(child), 0, "round {round}");
        if round == 0 {
            // SAFETY: no code refers to it.
            unsafe { arena.release(freed) }.unwrap();
        }
        assert!(arena.wait_live(PATIENCE), "round {round}");
        let now = Counters::new(&arena, ByteCount::mib(2));
        let used = [counters.slice().range(), now.slice().range()].map(mapped_files);
        assert!(used.iter().flatten().all(|file| !before.contains(file)), "round {round}");
        assert!(holds(&counters, round) && (0..now.len()).all(|i| now.at(i).load(Relaxed) == 0));
        eventually("the exposed file is closed", || are_closed(&before));
    }
}

/// The arena's owner, after its first child renounced and ended. Its second child reports if it takes over the arena.
fn owner(report: &PipeWriter) -> ! {
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(8));
    fill(&counters, 1);
    let first = fork_child(&[&arena], || arena.raw().renounce().is_ok() && holds(&counters, 1));
    assert_eq!(status_of(first.unwrap()), 0);
    let owner = process::pid();
    let _ = fork_child(&[&arena], || {
        eventually("the owner ends", || process::parent_pid() != owner);
        // Each attempt spends a token, so it is made twice.
        let was_adopted = [(); 2].map(|()| arena.raw().adopt().unwrap());
        let is_right = was_adopted == [false; 2] && holds(&counters, 1);
        (&*report).write_all(&[u8::from(is_right)]).is_ok()
    });
    process::exit_now(0)
}

#[test]
fn an_arena_with_an_exposed_file_is_not_taken_over() {
    let _watchdog = Watchdog::start("an heir of an exposed file");
    let (said, report) = std::io::pipe().unwrap();
    let child = fork_child(&[], || owner(&report));
    assert_eq!(status_of(child.unwrap()), 0);
    drop(report);
    let mut answer = [0];
    (&said).read_exact(&mut answer).expect("it ended without an answer");
    assert_eq!(answer, [1]);
}

#[cfg(feature = "failpoints")]
#[test]
fn a_kept_chunk_of_a_file_that_is_exposed_moves_when_it_is_written() {
    use cowslip_sys::Errno;
    use cowslip_sys::failpoints::{Op, fail};

    let _watchdog = Watchdog::start("a kept chunk");
    let _alone = alone();
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    if !arena.track_changes(true) {
        skip("pagemap_scan", "changes cannot be tracked here");
        return;
    }
    let counters = Counters::new(&arena, ByteCount::mib(16));
    fill(&counters, 1);
    drop(arena.freeze().unwrap());
    assert!(arena.wait_live(PATIENCE));
    assert!(arena.metrics().kept_chunks > 0);
    let range = counters.slice().range();
    let before = mapped_files(range);
    let part = VirtRange::new(range.start, page_size_bytes());
    {
        // There is no memory for a copy.
        let _rule = fail(Op::Mmap, 0, u32::MAX, Errno::NOMEM);
        // SAFETY: no code refers to it meanwhile.
        unsafe { arena.raw().detach(part, Departure::Advice) }.unwrap();
    }
    assert_eq!(arena.raw().parts(part)[0].1, Usage::Left);
    fill(&counters, 2);
    let rest = VirtRange::between(range.start + CHUNK_BYTES, range.end());
    eventually("all of it is in another file", || {
        mapped_files(rest).iter().all(|file| !before.contains(file))
    });
    assert!(holds(&counters, 2));
    // Its old places are given back.
    eventually("nothing is held twice", || arena.metrics().vacated_chunks == 0);
}

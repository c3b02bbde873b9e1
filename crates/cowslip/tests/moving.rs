#![allow(unsafe_code)]
//! Hot chunks are moved out of frozen memory while children read it, and a child has no access to its parent's later
//! writes.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, Pages};
use cowslip_sys::procfs;
use cowslip_sys::scheduling::{Processors, current_processor, set_idle};
use support::children::{kill, wait_for_ever};
use support::{
    Counters, PATIENCE, Watchdog, Writers, alone, eventually, fork_child, scaled, skip, status_of,
    wait_unread,
};

const SIZE: ByteCount = ByteCount::mib(32);
const CHUNKS: u64 = SIZE.0 / CHUNK_BYTES as u64;

/// An arena with touched memory; `None` where nothing can be moved.
fn arena() -> Option<(Arena, Counters)> {
    let arena = Arena::new(ByteCount::mib(128)).unwrap();
    if !arena.raw().start_service() {
        skip("userfaultfd", "nothing is moved without a service thread");
        return None;
    }
    let counters = Counters::new(&arena, SIZE);
    write(&counters, 0..CHUNKS as usize, page_size_bytes());
    Some((arena, counters))
}

/// Adds one to a word in each `step` bytes of these chunks.
fn write(counters: &Counters, chunks: std::ops::Range<usize>, step: usize) {
    for chunk in chunks {
        let words = (0..CHUNK_BYTES).step_by(step).map(|at| (chunk * CHUNK_BYTES + at) / 8);
        words.for_each(|word| _ = counters.at(word).fetch_add(1, Relaxed));
    }
}

/// Adds one to a word in each of these pages of a chunk.
fn write_pages(counters: &Counters, chunk: usize, pages: impl IntoIterator<Item = usize>) {
    let words = pages.into_iter().map(|page| (chunk * CHUNK_BYTES + page * page_size_bytes()) / 8);
    words.for_each(|word| _ = counters.at(word).fetch_add(1, Relaxed));
}

/// The inodes that a process maps in a range.
fn inodes(pid: u32, range: VirtRange) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let here = maps.lines().filter(|line| {
        procfs::mappings(line).any(|mapping| !mapping.range.intersect(range).is_empty())
    });
    here.map(|line| line.split_whitespace().skip(3).take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn i1_and_i2_hold_while_hot_chunks_move() {
    let _alone = alone();
    let _watchdog = Watchdog::start("moves under writers");
    for _ in 0..scaled(5) {
        let Some((arena, counters)) = arena() else { return };
        let before = counters.sum();
        let writers = Writers::start(&counters, 2);
        let (wait, go) = std::io::pipe().unwrap();
        let moved_before = arena.metrics().moved_chunks;
        let child = fork_child(&[&arena], || {
            let sum = counters.sum();
            let _ = std::io::Read::read(&mut &wait, &mut [0]);
            sum == counters.sum()
        });
        let child = child.unwrap();
        let moved = || arena.metrics().moved_chunks - moved_before;
        eventually("most is moved", || moved() >= CHUNKS / 2);
        assert!(arena.metrics().vacated_chunks > 0, "the child reads what was moved out of");
        std::io::Write::write_all(&mut &go, &[1]).unwrap();
        assert_eq!(status_of(child), 0, "it saw one instant, to the end");
        let written = writers.stop();
        assert_eq!(counters.sum(), before + written);
        assert!(wait_unread(&arena, PATIENCE), "{:?}", arena.metrics());
        assert_eq!(counters.sum(), before + written);
    }
}

#[test]
fn a_child_maps_no_file_that_its_parent_writes_afterwards() {
    let _alone = alone();
    let _watchdog = Watchdog::start("what a child maps");
    let Some((arena, counters)) = arena() else { return };
    let child = fork_child(&[&arena], || wait_for_ever()).unwrap();
    let theirs = inodes(child as u32, arena.range());
    write(&counters, 0..4, page_size_bytes());
    let mine = std::process::id();
    let moved = VirtRange::new(counters.slice().range().start, 4 * CHUNK_BYTES);
    // Chunks ahead of the run may move before the last of these.
    eventually("hot chunks are moved", || inodes(mine, moved).is_disjoint(&theirs));
    let fresh = arena.slice::<u64>(CHUNK_BYTES / 4).unwrap();
    let now = inodes(mine, fresh.range());
    assert!(now.is_disjoint(&theirs), "{now:?}, and the child maps {theirs:?}");
    // Memory that is still frozen is shared.
    let cold = VirtRange::new(moved.start + 8 * CHUNK_BYTES, CHUNK_BYTES);
    assert!(inodes(mine, cold).is_subset(&theirs));
    kill(child);
    status_of(child);
    assert!(wait_unread(&arena, PATIENCE));
}

#[cfg(feature = "failpoints")]
#[test]
fn a_child_keeps_memory_that_left_after_its_owner_has_unmapped_it() {
    use cowslip::Prot;
    use cowslip::raw::{Departure, Usage};
    use cowslip_sys::Errno;
    use cowslip_sys::failpoints::{Op, fail};
    use support::children::plain_fork;

    let _alone = alone();
    let _watchdog = Watchdog::start("memory that left");
    let Some((arena, counters)) = arena() else { return };
    let part = VirtRange::new(counters.slice().range().start + CHUNK_BYTES, CHUNK_BYTES / 2);
    let words = CHUNK_BYTES / 8..CHUNK_BYTES * 3 / 2 / 8;
    words.clone().for_each(|word| counters.at(word).store(7, Relaxed));
    {
        // Without memory for a copy it stays where it is, mapped from the arena's file.
        let _rule = fail(Op::Mmap, 0, 1, Errno::NOMEM);
        // SAFETY: its content stays.
        unsafe { arena.raw().detach(part, Departure::Advice) }.unwrap();
    }
    assert_eq!(arena.raw().parts(part), [(part, Usage::Left, Prot::RW)]);
    let (wait, go) = std::io::pipe().unwrap();
    // No token counts it.
    let child = plain_fork();
    if child == 0 {
        let _ = std::io::Read::read(&mut &wait, &mut [0]);
        let is_whole = words.clone().all(|word| counters.at(word).load(Relaxed) == 7);
        cowslip_sys::process::exit_now(i32::from(!is_whole));
    }
    // SAFETY: nothing uses it any more.
    let unmapped = arena.raw().replace_mapping(part, || unsafe {
        (libc::munmap(part.start as *mut _, part.len) == 0).then_some(())
    });
    unmapped.unwrap();
    // The rest of its chunk moves to another file, and its place is given back.
    let reader = fork_child(&[&arena], || wait_for_ever()).unwrap();
    let pages = CHUNK_BYTES / page_size_bytes();
    let moved = arena.metrics().moved_chunks;
    write_pages(&counters, 1, pages / 2..pages);
    eventually("it is moved", || arena.metrics().moved_chunks > moved);
    kill(reader);
    status_of(reader);
    assert!(wait_unread(&arena, PATIENCE), "{:?}", arena.metrics());
    eventually("its place is given back", || arena.metrics().vacated_chunks == 0);
    std::io::Write::write_all(&mut &go, &[1]).unwrap();
    assert_eq!(status_of(child), 0, "the child reads what it inherited");
}

#[test]
fn an_arena_is_of_one_file_again_when_nothing_is_read() {
    let _alone = alone();
    let _watchdog = Watchdog::start("one file again");
    let Some((arena, counters)) = arena() else { return };
    for round in 1..=3 {
        let child = fork_child(&[&arena], || wait_for_ever()).unwrap();
        let moved = arena.metrics().moved_chunks;
        write(&counters, 3..9, page_size_bytes());
        eventually("hot chunks are moved", || arena.metrics().moved_chunks >= moved + 6);
        assert!(arena.metrics().descriptors().count() > 1);
        kill(child);
        status_of(child);
        assert!(wait_unread(&arena, PATIENCE), "{:?}", arena.metrics());
        eventually("one file", || arena.metrics().descriptors().count() == 1);
        let pages = (CHUNK_BYTES / page_size_bytes()) as u64;
        assert_eq!(counters.sum(), (CHUNKS + 6 * round) * pages);
    }
}

#[test]
fn a_fork_while_an_older_child_reads_takes_moved_memory_along() {
    let _alone = alone();
    let _watchdog = Watchdog::start("several generations");
    let Some((arena, counters)) = arena() else { return };
    let pages = (CHUNK_BYTES / page_size_bytes()) as u64;
    let mut children = Vec::new();
    for round in 0..6 {
        let (wait, go) = std::io::pipe().unwrap();
        let expected = (CHUNKS + 4 * round) * pages;
        let child = fork_child(&[&arena], || {
            let _ = std::io::Read::read(&mut &wait, &mut [0]);
            counters.sum() == expected
        });
        children.push((child.unwrap(), go));
        let moved = arena.metrics().moved_chunks;
        let first = 2 * round as usize;
        write(&counters, first..first + 4, page_size_bytes());
        eventually("hot chunks are moved", || arena.metrics().moved_chunks > moved);
    }
    // From the middle: neither the oldest nor the youngest first.
    while !children.is_empty() {
        let (child, go) = children.remove(children.len() / 2);
        std::io::Write::write_all(&mut &go, &[1]).unwrap();
        assert_eq!(status_of(child), 0, "each has its own instant");
    }
    assert!(wait_unread(&arena, PATIENCE), "{:?}", arena.metrics());
    assert_eq!(counters.sum(), (CHUNKS + 24) * pages);
}

/// Each freeze moves the written chunk away from the view before. There are more freezes than an arena has files, and the
/// service thread has no turn to give places without readers back.
#[test]
fn freezes_without_the_service_thread_never_run_out_of_files() {
    let _alone = alone();
    let Some((arena, counters)) = arena() else { return };
    let here = Processors::only(current_processor()).unwrap();
    here.assign(0).unwrap();
    for task in fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path()) {
        if fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("cowslip")) {
            let thread = task.file_name().unwrap().to_str().unwrap().parse().unwrap();
            here.assign(thread).unwrap();
            set_idle(thread, true).unwrap();
        }
    }
    let mut view = arena.freeze().unwrap();
    for round in 1..=300 {
        write_pages(&counters, 0, 0..1);
        let next = arena.freeze_timeout(PATIENCE).unwrap();
        let now = counters.at(0).load(Relaxed);
        assert_eq!(next.slice(counters.slice())[0], now, "round {round}");
        view = next;
    }
    drop(view);
}

#[test]
fn few_writes_move_nothing() {
    let _alone = alone();
    let _watchdog = Watchdog::start("what is moved");
    let Some((arena, counters)) = arena() else { return };
    if arena.pages() != Pages::HugeTmpfs {
        return skip("huge", "the arena is on other pages");
    }
    let child = fork_child(&[&arena], || wait_for_ever()).unwrap();
    // Eight pages in each chunk.
    write(&counters, 0..CHUNKS as usize, CHUNK_BYTES / 8);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(arena.metrics().moved_chunks, 0);
    kill(child);
    status_of(child);
    assert!(wait_unread(&arena, PATIENCE));
}

#[test]
fn writes_in_no_order_move_only_the_chunks_that_they_write_much() {
    let _alone = alone();
    let _watchdog = Watchdog::start("writes in no order");
    let Some((arena, counters)) = arena() else { return };
    if arena.pages() != Pages::HugeTmpfs {
        return skip("huge", "the arena is on other pages");
    }
    let moved_before = arena.metrics().moved_chunks;
    let moved = || arena.metrics().moved_chunks - moved_before;
    let child = fork_child(&[&arena], || wait_for_ever()).unwrap();
    // Hot neighbours of cold chunks, from the least popular to the most.
    let hot = [3, 8, 12, 1];
    for (i, chunk) in hot.into_iter().enumerate() {
        write_pages(&counters, chunk, (0..512).step_by(2));
        eventually("a chunk that is written much moves", || moved() > i as u64);
        // After a pause each other chunk has a few more pages, at random places or in a group.
        for cold in (0..CHUNKS as usize).filter(|chunk| !hot.contains(chunk)) {
            let at = (cold * 97 + i * 131) % 480;
            write_pages(&counters, cold, [at, at + 7, at + 13, at + 14, at + 15]);
        }
    }
    let moved = moved();
    kill(child);
    status_of(child);
    assert_eq!(moved, hot.len() as u64);
    assert!(wait_unread(&arena, PATIENCE));
    let written = hot.len() as u64 * 256 + hot.len() as u64 * (CHUNKS - hot.len() as u64) * 5;
    let pages = (CHUNKS as usize * CHUNK_BYTES / page_size_bytes()) as u64;
    assert_eq!(counters.sum(), pages + written);
}

#[test]
fn chunks_ahead_of_a_run_of_writes_move_before_it_comes_to_them() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a run of writes");
    let Some((arena, counters)) = arena() else { return };
    let moved_before = arena.metrics().moved_chunks;
    let frozen = arena.freeze().unwrap();
    let moved = || arena.metrics().moved_chunks - moved_before;
    write(&counters, 0..1, page_size_bytes());
    eventually("a chunk of which all was written is moved", || moved() == 1);
    // Too few pages for the chunk to move by itself.
    write_pages(&counters, 1, 0..8);
    eventually("the run's next chunk is moved, and one that nothing was written to", || {
        moved() == 3
    });
    let pages = (CHUNKS as usize * CHUNK_BYTES / page_size_bytes()) as u64;
    let written = (CHUNK_BYTES / page_size_bytes()) as u64 + 8;
    assert_eq!(frozen.slice(counters.slice()).iter().sum::<u64>(), pages, "the view is as it was");
    assert_eq!(counters.sum(), pages + written);
    drop(frozen);
    assert!(wait_unread(&arena, PATIENCE), "{:?}", arena.metrics());
    assert_eq!(counters.sum(), pages + written);
}

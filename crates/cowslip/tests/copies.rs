//! The memory that children may cost: beyond it only the youngest one that still reads is ended.
#![allow(unsafe_code)]

mod support;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

use cowslip::Arena;
use cowslip::units::{ByteCount, page_size_bytes};
use support::children::{kill, wait_for_ever};
use support::{Counters, PATIENCE, Watchdog, eventually, fork_child, skip, status_of};

fn write(counters: &Counters, pages: usize) {
    let step = page_size_bytes() / 8;
    (0..pages).for_each(|page| _ = counters.at(page * step).fetch_add(1, Relaxed));
}

fn arena(most: ByteCount) -> Option<(Arena, Counters)> {
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    if !arena.raw().start_service() {
        skip("userfaultfd", "no service thread");
        return None;
    }
    arena.raw().limit_copies_for_children(Some(most));
    let counters = Counters::new(&arena, ByteCount::mib(32));
    write(&counters, counters.len() * 8 / page_size_bytes());
    Some((arena, counters))
}

#[test]
fn the_youngest_reader_is_ended_and_its_parent_goes_on() {
    static TOLD: AtomicI32 = AtomicI32::new(0);
    let _watchdog = Watchdog::start("children that cost too much");
    let Some((arena, counters)) = arena(ByteCount::mib(8)) else { return };
    // Records only the first: the other one follows.
    arena.raw().on_child_ended(|pid| _ = TOLD.compare_exchange(0, pid, Relaxed, Relaxed));
    let elder = fork_child(&[&arena], || wait_for_ever()).unwrap();
    let younger = fork_child(&[&arena], || wait_for_ever()).unwrap();
    write(&counters, 1024);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(arena.metrics().ended_children, 0, "4 MiB of 8");
    write(&counters, 3072);
    assert_eq!(status_of(younger), libc::SIGTERM);
    // The child may be seen to have ended before that is noted.
    eventually("its end is told", || TOLD.load(Relaxed) == younger);
    // The copies still exist, because the other one reads.
    assert_eq!(status_of(elder), libc::SIGTERM);
    eventually("both are counted", || arena.metrics().ended_children == 2);
    assert!(arena.wait_live(PATIENCE));
    assert_eq!(counters.sum(), 8192 + 1024 + 3072);
}

#[test]
fn a_child_that_ignores_the_signal_is_killed() {
    let _watchdog = Watchdog::start("a child that ignores SIGTERM");
    let Some((arena, counters)) = arena(ByteCount::mib(4)) else { return };
    let (mut is_deaf, mut tells) = std::io::pipe().unwrap();
    let child = fork_child(&[&arena], || {
        // SAFETY: signal(2) in a child of one thread.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
        tells.write_all(&[1]).unwrap();
        wait_for_ever()
    });
    is_deaf.read_exact(&mut [0]).unwrap();
    write(&counters, 2048);
    assert_eq!(status_of(child.unwrap()), libc::SIGKILL);
    eventually("it is counted", || arena.metrics().ended_children == 1);
    assert!(arena.wait_live(PATIENCE));
}

#[test]
fn a_child_lives_that_is_another_program_by_now_or_costs_less() {
    let _watchdog = Watchdog::start("children that are left alone");
    let Some((arena, counters)) = arena(ByteCount::mib(16)) else { return };
    let reader = fork_child(&[&arena], || wait_for_ever()).unwrap();
    let program = c"/bin/sleep";
    let other = fork_child(&[&arena], || {
        let argv = [program.as_ptr(), c"60".as_ptr(), std::ptr::null()];
        // SAFETY: both end with a null pointer, and the strings are constants.
        unsafe { libc::execv(program.as_ptr(), argv.as_ptr()) };
        false
    });
    let other = other.unwrap();
    let name = || std::fs::read_to_string(format!("/proc/{other}/comm")).unwrap();
    eventually("it is another program", || name().trim() == "sleep");
    write(&counters, 3000);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(arena.metrics().ended_children, 0, "12 MiB of 16");
    write(&counters, 8000);
    assert_eq!(status_of(reader), libc::SIGTERM, "the elder, as the younger does not read");
    assert!(arena.wait_live(PATIENCE));
    eventually("it is counted", || arena.metrics().ended_children == 1);
    assert_eq!(name().trim(), "sleep");
    kill(other);
    assert_eq!(status_of(other), libc::SIGKILL);
}

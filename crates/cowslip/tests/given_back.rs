#![allow(unsafe_code)]
//! Single pages of inherited memory that a child gives back read as zeroes, within the same mapping.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::sync::atomic::Ordering::Relaxed;

use cowslip::units::{ByteCount, VirtRange, page_size_bytes};
use cowslip::{Arena, Backing};
use cowslip_sys::failpoints::{Op, fail};
use cowslip_sys::{Errno, process};
use support::children::plain_fork;
use support::{Counters, PATIENCE, Watchdog, alone, fork_child, skip, status_of};

const WORDS: usize = 4096 / 8;
const OLD: u64 = 7;

fn filled(arena: &Arena) -> Counters {
    let counters = Counters::new(arena, ByteCount::mib(8));
    (0..counters.len()).for_each(|i| counters.at(i).store(OLD, Relaxed));
    counters
}

fn is_given_back(page: usize) -> bool {
    page.is_multiple_of(4)
}

fn pages(counters: &Counters) -> impl Iterator<Item = usize> + use<> {
    0..counters.len() / WORDS
}

fn give_back(arena: &Arena, counters: &Counters) {
    let start = counters.slice().range().start;
    for page in pages(counters).filter(|page| is_given_back(*page)) {
        let part = VirtRange::new(start + page * page_size_bytes(), page_size_bytes());
        // SAFETY: a page of counters, which may be zero.
        unsafe { arena.discard(part) }.unwrap();
    }
}

/// True if all words of pages that were given back are zero, and the others unchanged.
fn holds(counters: &Counters) -> bool {
    (0..counters.len()).all(|i| {
        let wanted = if is_given_back(i / WORDS) { 0 } else { OLD };
        counters.at(i).load(Relaxed) == wanted
    })
}

fn mappings(range: VirtRange) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let is_inside = |line: &&str| {
        let start = line.split('-').next().unwrap();
        range.contains(usize::from_str_radix(start, 16).unwrap())
    };
    maps.lines().filter(is_inside).count()
}

/// An arena; skips the test if there is none.
fn arena() -> Option<Arena> {
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    if !arena.raw().start_service() {
        skip("userfaultfd", "zero pages are put by it");
        return None;
    }
    Some(arena)
}

#[test]
fn pages_that_a_child_gives_back_are_zero_for_it_and_its_children_alone() {
    let _alone = alone();
    let _watchdog = Watchdog::start("pages given back by a child");
    let Some(arena) = arena() else { return };
    let counters = filled(&arena);
    let child = fork_child(&[&arena], || {
        // Its private copy is dropped, too.
        counters.at(0).store(9, Relaxed);
        let before = mappings(arena.range());
        give_back(&arena, &counters);
        let is_right = mappings(arena.range()) <= before + 2 && holds(&counters);
        let grandchild = fork_child(&[&arena], || {
            // From here on it is the grandchild's own memory.
            give_back(&arena, &counters);
            holds(&counters)
        });
        let by_libc = match plain_fork() {
            0 => process::exit_now(i32::from(!holds(&counters))),
            pid => status_of(pid) == 0,
        };
        counters.at(0).store(3, Relaxed);
        let is_written = counters.at(0).load(Relaxed) == 3 && counters.at(1).load(Relaxed) == 0;
        is_right && by_libc && is_written && status_of(grandchild.unwrap()) == 0
    });
    assert_eq!(status_of(child.unwrap()), 0);
    assert!((0..counters.len()).all(|i| counters.at(i).load(Relaxed) == OLD));
    assert!(arena.wait_live(PATIENCE));
}

/// A read of a page that is in no file is no fault that waits.
#[test]
fn pages_that_were_never_touched_are_zero_beside_those_given_back() {
    let _alone = alone();
    let _watchdog = Watchdog::start("pages that were never touched");
    let arena = Arena::builder(ByteCount::mib(32)).backing(Backing::Base).build().unwrap();
    if !arena.raw().start_service() {
        return skip("userfaultfd", "zero pages are put by it");
    }
    let counters = Counters::new(&arena, ByteCount::mib(8));
    let is_touched = |page: usize| page.is_multiple_of(2);
    let words = || (0..counters.len()).step_by(WORDS);
    for word in words().filter(|word| is_touched(word / WORDS)) {
        counters.at(word).store(OLD, Relaxed);
    }
    let child = fork_child(&[&arena], || {
        give_back(&arena, &counters);
        words().all(|word| {
            let page = word / WORDS;
            let wanted = if is_touched(page) && !is_given_back(page) { OLD } else { 0 };
            counters.at(word).load(Relaxed) == wanted
        })
    });
    assert_eq!(status_of(child.unwrap()), 0);
}

/// The owner ends; its child takes the arena over, with pages of zeroes over the file's.
#[test]
fn pages_given_back_stay_zero_when_a_child_takes_the_arena_over() {
    let _alone = alone();
    let _watchdog = Watchdog::start("takeover of pages given back");
    let (result, report) = std::io::pipe().unwrap();
    if plain_fork() == 0 {
        let Some(arena) = arena() else { process::exit_now(0) };
        let counters = filled(&arena);
        let owner = process::pid();
        let heir = fork_child(&[&arena], || {
            give_back(&arena, &counters);
            support::eventually("the owner ends", || process::parent_pid() != owner);
            support::eventually("the arena is its own", || arena.raw().adopt().unwrap());
            let thaws = arena.raw().start_service() && arena.wait_live(PATIENCE);
            let said = format!("{thaws} {}", holds(&counters));
            (&report).write_all(said.as_bytes()).is_ok()
        });
        process::exit_now(i32::from(heir.is_err()));
    }
    drop(report);
    let mut said = String::new();
    (&result).read_to_string(&mut said).unwrap();
    assert!(matches!(&*said, "true true" | ""), "{said}");
}

#[test]
fn what_the_kernel_refuses_is_mapped_as_zeroes() {
    let _alone = alone();
    let _watchdog = Watchdog::start("pages given back while calls fail");
    let Some(arena) = arena() else { return };
    let counters = filled(&arena);
    for op in [Op::UffdOpen, Op::UffdRegister, Op::UffdCopy, Op::UffdUnregister] {
        for pass in 0..3 {
            let child = fork_child(&[&arena], || {
                let rule = fail(op, pass, u32::MAX, Errno::NOMEM);
                give_back(&arena, &counters);
                drop(rule);
                holds(&counters)
            });
            assert_eq!(status_of(child.unwrap()), 0, "{op:?} {pass}");
        }
    }
}

#![allow(unsafe_code)]
//! Tests which processes read the base: grandchildren, and children without a descriptor, do; processes that have
//! exec'ed or were killed do not. A thaw too early breaks I2, one that never comes costs the huge pages.

mod support;

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cowslip::Arena;
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip_sys::memory;
use support::children::{Child, KINDS, close_all, kill, plain_fork, wait_for_ever};
use support::{Counters, PATIENCE, Watchdog, alone, fork_child, skip, status_of, wait_unread};

/// By this time an allowed thaw has long begun.
const TOO_EARLY: Duration = Duration::from_millis(300);

struct Family {
    arena: Arena,
    counters: Counters,
    to_child: (PipeReader, PipeWriter),
    to_parent: (PipeReader, PipeWriter),
}

impl Family {
    /// `None` where nothing thaws in the background.
    fn new() -> Option<Self> {
        let arena = Arena::new(ByteCount::mib(32)).unwrap();
        if !arena.raw().start_service() {
            skip("userfaultfd", "nothing is thawed in the background");
            return None;
        }
        let counters = Counters::new(&arena, ByteCount::mib(8));
        let (to_child, to_parent) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let family = Self { arena, counters, to_child, to_parent };
        family.fill(1);
        Some(family)
    }

    fn fill(&self, value: u64) {
        (0..self.counters.len()).for_each(|i| self.counters.at(i).store(value, Relaxed));
    }

    fn holds(&self, value: u64) -> bool {
        (0..self.counters.len()).all(|i| self.counters.at(i).load(Relaxed) == value)
    }

    fn tell_parent(&self, word: i32) {
        (&self.to_parent.1).write_all(&word.to_ne_bytes()).unwrap();
    }

    fn hear(&self) -> i32 {
        let mut word = [0; 4];
        (&self.to_parent.0).read_exact(&mut word).unwrap();
        i32::from_ne_bytes(word)
    }

    fn tell_child(&self) {
        (&self.to_child.1).write_all(&[1]).unwrap();
    }

    fn wait_for_word(&self) {
        (&self.to_child.0).read_exact(&mut [0]).unwrap();
    }

    fn is_held(&self) {
        self.fill(2);
        assert!(!wait_unread(&self.arena, TOO_EARLY), "thawed under a reader");
        self.fill(3);
    }

    fn is_let_go(&self) {
        assert!(wait_unread(&self.arena, PATIENCE), "{:?}", self.arena.metrics());
        assert!(self.holds(3));
        drop(self.arena.freeze_timeout(PATIENCE).unwrap());
    }
}

#[test]
fn i2_a_grandchild_keeps_the_base_until_it_ends() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a grandchild");
    let Some(family) = Family::new() else { return };
    let child = fork_child(&[&family.arena], || match plain_fork() {
        0 => {
            family.wait_for_word();
            family.tell_parent(i32::from(family.holds(1)));
            wait_for_ever()
        }
        grandchild => {
            family.tell_parent(grandchild);
            grandchild > 0
        }
    });
    assert_eq!(status_of(child.unwrap()), 0, "the child is gone, the grandchild not");
    let grandchild = family.hear();
    family.is_held();
    family.tell_child();
    assert_eq!(family.hear(), 1, "it reads what was there when its parent was forked");
    assert!(!wait_unread(&family.arena, TOO_EARLY));
    kill(grandchild);
    family.is_let_go();
}

#[test]
fn i2_descriptors_do_not_matter() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a child without descriptors");
    let Some(family) = Family::new() else { return };
    let child = fork_child(&[&family.arena], || match plain_fork() {
        0 => {
            family.tell_parent(cowslip_sys::process::pid());
            close_all();
            wait_for_ever()
        }
        grandchild => {
            close_all();
            grandchild > 0
        }
    });
    assert_eq!(status_of(child.unwrap()), 0);
    let grandchild = family.hear();
    family.is_held();
    kill(grandchild);
    family.is_let_go();
}

#[test]
fn i2_a_child_that_execs_reads_no_more() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a child that execs");
    let Some(family) = Family::new() else { return };
    let child = fork_child(&[&family.arena], || {
        family.wait_for_word();
        let argv = [c"/bin/sleep".as_ptr(), c"1000".as_ptr(), std::ptr::null()];
        // SAFETY: the array ends with a null pointer, and the strings are static.
        unsafe { libc::execv(argv[0], argv.as_ptr()) };
        false
    });
    let child = child.unwrap();
    family.is_held();
    family.tell_child();
    family.is_let_go();
    // SAFETY: waitpid(2) without waiting.
    let ended = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(ended, 0, "the other program runs");
    kill(child);
    status_of(child);
}

#[test]
fn i2_every_kind_of_child_is_right_and_lets_go() {
    let _alone = alone();
    let _watchdog = Watchdog::start("children of every kind");
    let Some(family) = Family::new() else { return };
    for kind in KINDS {
        family.fill(1);
        let check = || (0..2).all(|_| family.holds(1));
        let child = Child::fork(&family.arena, kind, check).unwrap();
        family.fill(3);
        assert!(child.ends_right(), "{kind:?}");
        family.is_let_go();
    }
}

#[test]
fn memory_frozen_at_different_times_is_thawed_in_one_go() {
    let _alone = alone();
    let _watchdog = Watchdog::start("memory frozen at different times");
    let Some(family) = Family::new() else { return };
    // Each part has copies of its own before the next is frozen: to the kernel they are separate
    // mappings, and clean memory on both sides of a border is thawed in one step.
    let mut parts = Vec::new();
    let children: Vec<i32> = (0..4)
        .map(|i| {
            let mut part = family.arena.slice::<u64>(2 * CHUNK_BYTES / 8).unwrap();
            part.fill(i);
            parts.push(part);
            let child = fork_child(&[&family.arena], || {
                family.wait_for_word();
                true
            });
            let place = if i % 2 == 0 { 0 } else { parts[i as usize].len() - 1 };
            parts[i as usize][place] = 100 + i;
            child.unwrap()
        })
        .collect();
    family.fill(3);
    children.iter().for_each(|_| family.tell_child());
    children.into_iter().for_each(|child| assert_eq!(status_of(child), 0));
    family.is_let_go();
    assert_eq!(family.arena.metrics().failed_thaw_chunks, 0);
    for (i, part) in (0..).zip(&parts) {
        let changed = if i % 2 == 0 { 0 } else { part.len() - 1 };
        let right = |(at, &value): (usize, &u64)| value == if at == changed { 100 + i } else { i };
        assert!(part.iter().enumerate().all(right), "part {i}");
    }
}

#[test]
fn i2_a_fork_while_earlier_children_read_is_right_too() {
    let _alone = alone();
    let _watchdog = Watchdog::start("children one after the other");
    let Some(family) = Family::new() else { return };
    // All wait for their word, so every base is read until the last is forked.
    let children: Vec<i32> = (10..20)
        .map(|moment| {
            family.fill(moment);
            let child = fork_child(&[&family.arena], || {
                family.wait_for_word();
                family.holds(moment)
            });
            child.unwrap()
        })
        .collect();
    family.is_held();
    children.iter().for_each(|_| family.tell_child());
    for (i, child) in children.into_iter().enumerate() {
        assert_eq!(status_of(child), 0, "child {i}");
    }
    family.is_let_go();
}

#[test]
fn i5_a_childs_own_mappings_are_not_where_the_arena_is() {
    let _alone = alone();
    let arena = Arena::new(ByteCount::gib(1)).unwrap();
    let used = arena.slice::<u64>(1).unwrap();
    let is_apart = || {
        let own = memory::reserve(CHUNK_BYTES, CHUNK_BYTES).unwrap();
        arena.range().intersect(own).is_empty()
    };
    let child = fork_child(&[&arena], || (0..600).all(|_| is_apart())).unwrap();
    assert_eq!(status_of(child), 0);
    drop(used);
}

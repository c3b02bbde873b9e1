#![allow(unsafe_code)]
//! Another process, inspected and advised from outside: the result matches the changes to its memory.

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use cowslip_sys::memory::{self, Prot};
use cowslip_sys::pagemap::{Method, PageKinds, Scanner};
use cowslip_sys::target::{Advice, Refusal, Target};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{Errno, process, procfs};
use support::skip;

/// A child that one test forks shares the pages of all other tests.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One chunk of private memory on base pages.
struct Chunk(VirtRange, #[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Chunk {
    fn new() -> Self {
        let alone = alone();
        let range = memory::reserve(CHUNK_BYTES, CHUNK_BYTES).unwrap();
        // SAFETY: reserved for this value, and known to no other code.
        unsafe {
            memory::map_anonymous(range, Prot::RW).unwrap();
            memory::advise(range, memory::Advice::NoHugePage).unwrap();
        }
        Self(range, alone)
    }

    fn page(&self, i: usize) -> *mut u64 {
        (self.0.start + i * page_size_bytes()) as *mut u64
    }

    fn write(&self, i: usize, value: u64) {
        // SAFETY: inside the mapping.
        unsafe { self.page(i).write_volatile(value) }
    }

    fn read(&self, i: usize) -> u64 {
        // SAFETY: inside the mapping.
        unsafe { self.page(i).read_volatile() }
    }

    fn allow_huge(&self) {
        // SAFETY: the value's own mapping; its content does not change.
        unsafe { memory::advise(self.0, memory::Advice::HugePage) }.unwrap();
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { memory::unmap(self.0) }.unwrap();
    }
}

fn myself() -> Target {
    Target::open(process::pid()).unwrap()
}

fn scanner(target: &Target) -> Option<Scanner> {
    let scanner = Scanner::new(target.open_file("pagemap").unwrap());
    if scanner.method() == Method::Entries {
        skip("pagemap_scan", "this kernel has no PAGEMAP_SCAN");
        return None;
    }
    Some(scanner)
}

fn count(scanner: &Scanner, range: VirtRange, kind: PageKinds) -> usize {
    let mut bytes = 0;
    let mut add = |run: VirtRange, kinds: PageKinds| {
        if kinds.contains(kind) {
            bytes += run.len;
        }
    };
    scanner.kinds(range, &mut add).unwrap();
    bytes / page_size_bytes()
}

#[test]
fn written_zero_and_absent_pages_are_told_apart() {
    let (chunk, target) = (Chunk::new(), myself());
    let Some(scanner) = scanner(&target) else { return };
    (0..100).for_each(|i| chunk.write(i, 1));
    (200..230).for_each(|i| assert_eq!(chunk.read(i), 0));
    assert_eq!(count(&scanner, chunk.0, PageKinds::PRESENT), 130);
    assert_eq!(count(&scanner, chunk.0, PageKinds::ZERO), 30);
    assert_eq!(count(&scanner, chunk.0, PageKinds::HUGE), 0);
    let not_exclusive = scanner.count_not_exclusive(chunk.0).unwrap();
    assert_eq!(not_exclusive, 30, "the zero page is everybody's");
}

#[test]
fn pages_shared_with_a_forked_child_are_not_exclusive_until_it_ends() {
    let (chunk, target) = (Chunk::new(), myself());
    let Some(scanner) = scanner(&target) else { return };
    (0..100).for_each(|i| chunk.write(i, 1));
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child reads from a pipe and ends.
    let child = unsafe { process::fork() }.unwrap();
    if child == 0 {
        drop(writer);
        let _ = std::io::Read::read(&mut &reader, &mut [0]);
        process::exit_now(0);
    }
    assert_eq!(scanner.count_not_exclusive(chunk.0), Ok(100));
    (0..40).for_each(|i| chunk.write(i, 2));
    assert_eq!(scanner.count_not_exclusive(chunk.0), Ok(60), "copies are the process's own");
    drop(writer);
    process::wait_for(child).unwrap();
    assert_eq!(scanner.count_not_exclusive(chunk.0), Ok(0));
}

#[test]
fn a_chunk_becomes_huge_and_is_split_with_its_content() {
    let (chunk, target) = (Chunk::new(), myself());
    let Some(scanner) = scanner(&target) else { return };
    (0..50).for_each(|i| chunk.write(i * 2, i as u64 + 1));
    chunk.allow_huge();
    target.advise(chunk.0, Advice::Collapse).unwrap();
    assert_eq!(count(&scanner, chunk.0, PageKinds::HUGE), 512);

    let mut is_zero = Vec::new();
    target.zero_pages(chunk.0, &mut is_zero).unwrap();
    let used = |i: usize| i < 100 && i.is_multiple_of(2);
    assert!((0..512).all(|i| is_zero[i] != used(i)), "{is_zero:?}");

    let one = VirtRange::new(chunk.page(511) as usize, page_size_bytes());
    target.advise(one, Advice::Cold).unwrap();
    assert_eq!(count(&scanner, chunk.0, PageKinds::HUGE), 0);
    let expected = |i: usize| if used(i) { i as u64 / 2 + 1 } else { 0 };
    assert!((0..512).all(|i| chunk.read(i) == expected(i)));
}

#[test]
fn memory_that_cannot_be_huge_is_given_up() {
    let (chunk, target) = (Chunk::new(), myself());
    chunk.write(0, 1);
    let refused = target.advise(chunk.0, Advice::Collapse).unwrap_err();
    assert_eq!(Refusal::from_errno(refused), Refusal::GiveUp, "{refused}: it asked for base pages");
}

#[test]
fn what_has_ended_is_gone_whoever_has_its_number() {
    let _alone = alone();
    // SAFETY: the child ends at once.
    let child = unsafe { process::fork() }.unwrap();
    if child == 0 {
        process::exit_now(0);
    }
    let opened = Target::open(child);
    process::wait_for(child).unwrap();
    if let Ok(target) = opened {
        assert!(target.has_ended().unwrap());
        assert_eq!(target.open_file("maps").unwrap_err(), Errno::SRCH);
        let anywhere = VirtRange::new(CHUNK_BYTES, CHUNK_BYTES);
        let refused = target.advise(anywhere, Advice::Collapse).unwrap_err();
        assert_eq!(Refusal::from_errno(refused), Refusal::Vanished);
    }
    assert_eq!(Target::open(child).unwrap_err(), Errno::SRCH);
}

#[test]
fn a_process_is_described_by_its_files() {
    let (chunk, target) = (Chunk::new(), myself());
    chunk.write(0, 1);
    let maps = target.read_file("maps").unwrap();
    let mapping = procfs::mappings(&maps).find(|mapping| mapping.range.covers(chunk.0)).unwrap();
    assert!(mapping.is_anonymous());
    let stat = target.read_file("stat").unwrap();
    assert!(procfs::start_ticks(&stat).unwrap() > 0);
    assert!(procfs::command_name(&stat).is_some());
    assert!(procfs::process_ids().unwrap().contains(&process::pid()));
    let smaps = target.read_file("smaps").unwrap();
    let all = procfs::smaps(&smaps);
    let (_, usage) = all.iter().find(|(mapping, _)| mapping.range.covers(chunk.0)).unwrap();
    assert!(usage.anonymous_bytes > 0 && usage.huge_bytes == 0, "{usage:?}");
}

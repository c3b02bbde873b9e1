#![allow(unsafe_code)]
//! userfaultfd: writers wait, woken threads go on, and moves are reported.

mod support;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use cowslip_sys::memory::{self, Prot, Sharing};
use cowslip_sys::uffd::{self, Features, Outcome, RegisterMode, Uffd};
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, Errno, OwnedFd, process};
use support::{Mapped, skip};

const PAGES: usize = 16;

fn uffd(features: Features) -> Option<Uffd<OwnedFd>> {
    match uffd::open() {
        Ok((fd, _)) => Some(Uffd::new(fd, features).unwrap()),
        Err(errno) => {
            assert_eq!(errno, Errno::PERM);
            skip("userfaultfd", "this process may not have one");
            None
        }
    }
}

const WP: Features = Features::PAGEFAULT_FLAG_WP.union(Features::WP_HUGETLBFS_SHMEM);

/// Reads events until a thread has hit a fault.
fn wait_for_fault(uffd: &Uffd<OwnedFd>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while uffd.read_events().unwrap().faults == 0 {
        assert!(Instant::now() < deadline, "nobody ran into a fault");
        let mut ready = [false];
        let pause = Some(Duration::from_secs(1));
        process::wait_readable(&[uffd.as_fd()], &mut ready, pause).unwrap();
    }
}

#[test]
fn a_store_to_a_protected_page_waits_until_it_may() {
    let Some(uffd) = uffd(WP) else { return };
    for (written, touched) in [(true, true), (false, true), (false, false)] {
        let mapped = Mapped::new(PAGES, Sharing::Private);
        if touched {
            (0..PAGES).for_each(|i| assert_eq!(mapped.read(i), i as u8 + 1));
        }
        if written {
            (0..PAGES).for_each(|i| mapped.write(i, 0x10 + i as u8));
        }
        uffd.register(mapped.range, RegisterMode::WP).unwrap();
        assert_eq!(uffd.write_protect(mapped.range, true).unwrap(), Outcome::Done);
        let stored = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                mapped.write(3, 0xee);
                stored.store(true, SeqCst);
            });
            wait_for_fault(&uffd);
            assert!(!stored.load(SeqCst), "written {written}, touched {touched}");
            let before = if written { 0x13 } else { 4 };
            assert_eq!(mapped.read(3), before, "who reads does not wait");
            // A thread that is woken without being let through faults again.
            uffd.wake(mapped.range).unwrap();
            wait_for_fault(&uffd);
            assert!(!stored.load(SeqCst));
            assert_eq!(uffd.write_protect(mapped.range, false).unwrap(), Outcome::Done);
        });
        assert_eq!(mapped.read(3), 0xee);
        uffd.unregister(mapped.range).unwrap();
    }
}

#[test]
fn a_mapping_over_the_range_and_a_wake_let_the_store_through() {
    let Some(uffd) = uffd(WP) else { return };
    let mapped = Mapped::new(PAGES, Sharing::Private);
    uffd.register(mapped.range, RegisterMode::WP).unwrap();
    uffd.write_protect(mapped.range, true).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| mapped.write(5, 0x55));
        wait_for_fault(&uffd);
        // SAFETY: the mapping belongs to the test; its content is the file's, as before.
        unsafe {
            memory::map_file(
                mapped.range,
                mapped.file.as_fd(),
                0,
                Sharing::Shared,
                memory::Prot::RW,
            )
        }
        .unwrap();
        uffd.wake(mapped.range).unwrap();
    });
    let mut byte = [0];
    let at = (5 * page_size_bytes()) as u64;
    cowslip_sys::memfile::read_at(mapped.file.as_fd(), &mut byte, at).unwrap();
    assert_eq!(byte, [0x55], "it reached the file");
}

#[test]
fn unregistering_wakes_who_waits_if_missing_faults_did() {
    let Some(uffd) = uffd(WP | Features::MISSING_SHMEM) else { return };
    for (mode, wakes) in
        [(RegisterMode::WP | RegisterMode::MISSING, true), (RegisterMode::WP, false)]
    {
        let mapped = Mapped::new(PAGES, Sharing::Private);
        uffd.register(mapped.range, mode).unwrap();
        uffd.write_protect(mapped.range, true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| mapped.write(1, 7));
            wait_for_fault(&uffd);
            uffd.unregister(mapped.range).unwrap();
            if !wakes {
                uffd.wake(mapped.range).unwrap();
            }
        });
        assert_eq!(mapped.read(1), 7);
    }
}

#[test]
fn moved_pages_leave_accesses_waiting_and_cached_pages_answer_them() {
    let features = WP | Features::EVENT_REMAP | Features::MISSING_SHMEM | Features::MINOR_SHMEM;
    let Some(uffd) = uffd(features) else { return };
    let mapped = Mapped::new(PAGES, Sharing::Shared);
    (0..PAGES).for_each(|i| mapped.write(i, 0x20 + i as u8));
    let page = page_size_bytes();
    let view = memory::reserve(mapped.range.len, page).unwrap();
    uffd.register(mapped.range, RegisterMode::MISSING | RegisterMode::MINOR).unwrap();
    let is_moved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: both ranges are the test's own.
            unsafe { memory::move_pages_out(mapped.range, view) }.unwrap();
            is_moved.store(true, SeqCst);
        });
        // The move returns only after its event has been read.
        let mut remaps = 0;
        while remaps == 0 {
            assert!(!is_moved.load(SeqCst), "the event comes first");
            remaps += uffd.read_events().unwrap().remaps;
        }
    });
    uffd.unregister(view).unwrap();
    let waiting = [AtomicBool::new(true), AtomicBool::new(true)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(mapped.read(2), 0x22);
            waiting[0].store(false, SeqCst);
        });
        wait_for_fault(&uffd);
        assert!(waiting[0].load(SeqCst));
        assert_eq!(uffd.map_cached(mapped.page(2)).unwrap(), Outcome::Done);
    });
    assert_eq!(uffd.map_cached(mapped.page(2)).unwrap(), Outcome::AlreadyMapped);
    uffd.unregister(mapped.range).unwrap();
    for i in 0..PAGES {
        assert_eq!(mapped.read(i), 0x20 + i as u8, "what was moved is there again, from the file");
        // SAFETY: the view is mapped and readable.
        let seen = unsafe { ((view.start + i * page) as *const u8).read_volatile() };
        assert_eq!(seen, 0x20 + i as u8);
    }
    // SAFETY: the view is the test's own.
    unsafe { memory::unmap(view) }.unwrap();
}

/// Anonymous pages, empty and registered for missing faults.
fn missing(uffd: &Uffd<OwnedFd>) -> VirtRange {
    let page = page_size_bytes();
    let range = memory::reserve(PAGES * page, page).unwrap();
    // SAFETY: reserved just now for the test.
    unsafe { memory::map_anonymous(range, Prot::RW) }.unwrap();
    uffd.register(range, RegisterMode::MISSING).unwrap();
    range
}

#[test]
fn a_read_of_a_missing_page_waits_and_sees_what_was_copied() {
    let Some(uffd) = uffd(Features::empty()) else { return };
    let (range, page) = (missing(&uffd), page_size_bytes());
    // SAFETY: mapped; a fault waits until it is served below.
    let read = |i: usize| unsafe { ((range.start + i * page) as *const u8).read_volatile() };
    let content: Vec<u8> = (0..PAGES * page).map(|at| (at / page) as u8 + 7).collect();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(3));
        wait_for_fault(&uffd);
        let third = VirtRange::new(range.start + 3 * page, page);
        assert_eq!(uffd.copy(third, &content[3 * page..4 * page]), Ok(Outcome::Done));
        assert_eq!(reader.join().unwrap(), 10);
        assert_eq!(uffd.copy(third, &content[..page]), Ok(Outcome::AlreadyMapped));
    });
    let (before, after) = (
        VirtRange::new(range.start, 5 * page),
        VirtRange::between(range.start + 4 * page, range.end()),
    );
    let done_bytes = 3 * page as u64;
    assert_eq!(uffd.copy(before, &content[..5 * page]), Ok(Outcome::Again { done_bytes }));
    assert_eq!(uffd.copy(after, &content[4 * page..]), Ok(Outcome::Done));
    assert!((0..PAGES).all(|i| read(i) == i as u8 + 7));
    assert_eq!(uffd.copy(after, &content), Err(Errno::INVAL), "another length");
    // SAFETY: the test's own.
    unsafe { memory::unmap(range) }.unwrap();
}

#[test]
fn pages_are_moved_and_gone_where_they_were() {
    let (fd, _) = match uffd::open() {
        Ok(opened) => opened,
        Err(errno) => {
            assert_eq!(errno, Errno::PERM);
            return skip("userfaultfd", "this process may not have one");
        }
    };
    let uffd = match Uffd::new(fd, Features::MOVE) {
        Ok(uffd) => uffd,
        Err(errno) => {
            assert_eq!(errno, Errno::INVAL);
            return skip("uffd-move", "this kernel has no UFFDIO_MOVE");
        }
    };
    let (range, page) = (missing(&uffd), page_size_bytes());
    let source = memory::reserve(PAGES * page, page).unwrap();
    // SAFETY: reserved just now for the test.
    unsafe {
        memory::map_anonymous(source, Prot::RW).unwrap();
        (0..PAGES).for_each(|i| ((source.start + i * page) as *mut u8).write(i as u8 + 1));
        assert_eq!(uffd.move_pages(range, source.start), Ok(Outcome::Done));
        for i in 0..PAGES {
            assert_eq!(((range.start + i * page) as *const u8).read_volatile(), i as u8 + 1);
            assert_eq!(((source.start + i * page) as *const u8).read_volatile(), 0);
        }
        memory::unmap(range).unwrap();
        memory::unmap(source).unwrap();
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let Some(uffd) = uffd(WP) else { return };
    let mapped = Mapped::new(PAGES, Sharing::Private);
    assert_eq!(uffd.write_protect(mapped.range, true), Err(Errno::NOENT), "not registered");
    let odd = VirtRange::new(mapped.range.start + 1, page_size_bytes());
    assert_eq!(uffd.register(odd, RegisterMode::WP), Err(Errno::INVAL));
    assert_eq!(uffd.wake(odd), Err(Errno::INVAL));
    let (fd, _) = uffd::open().unwrap();
    let unknown = Features::from_bits_retain(1 << 62);
    assert_eq!(Uffd::new(fd, unknown).err(), Some(Errno::INVAL));
}

#![allow(unsafe_code)]
//! `PAGEMAP_SCAN` and the entries of `/proc/self/pagemap` give the same answer.

mod support;

use cowslip_sys::memfile;
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::pagemap::{Method, Scanner};
use cowslip_sys::uffd::{self, Features, RegisterMode, Uffd};
use cowslip_sys::units::{VirtRange, page_size_bytes};
use support::{Mapped, skip};

const PAGES: usize = 64;

fn scanners() -> [Scanner; 2] {
    let pagemap = || cowslip_sys::procfs::open_self("pagemap").unwrap();
    let entries = Scanner::with_entries(pagemap());
    assert_eq!(entries.method(), Method::Entries);
    [Scanner::new(pagemap()), entries]
}

/// The private pages of a mapping, by number, as this scanner sees them.
fn private(scanner: &Scanner, range: VirtRange) -> Vec<usize> {
    let page = page_size_bytes();
    let mut pages = Vec::new();
    let count = scanner.private_runs(range, |run| {
        assert!(range.covers(run) && !run.is_empty());
        let first = (run.start - range.start) / page;
        pages.extend(first..first + run.len / page);
    });
    assert_eq!(count.unwrap() as usize, pages.len());
    assert!(pages.is_sorted());
    pages
}

fn agree(range: VirtRange) -> Vec<usize> {
    let [scan, entries] = scanners();
    let (a, b) = (private(&scan, range), private(&entries, range));
    assert_eq!(a, b, "{:?} and entries", scan.method());
    a
}

fn some_pages() -> Vec<usize> {
    vec![0, 1, 2, 7, 9, 30, 31, PAGES - 1]
}

#[test]
fn written_pages_are_private_and_read_ones_are_not() {
    let mapped = Mapped::new(PAGES, Sharing::Private);
    assert!(agree(mapped.range).is_empty(), "untouched");
    (0..PAGES).for_each(|i| assert_eq!(mapped.read(i), i as u8 + 1));
    assert!(agree(mapped.range).is_empty(), "read");
    some_pages().into_iter().for_each(|i| mapped.write(i, 0xff));
    assert_eq!(agree(mapped.range), some_pages());
    let middle = VirtRange::between(mapped.page(1).start, mapped.page(31).start);
    assert_eq!(agree(middle), [0, 1, 6, 8, 29], "within a part");
}

#[test]
fn pages_of_a_shared_mapping_are_never_private() {
    let mapped = Mapped::new(PAGES, Sharing::Shared);
    (0..PAGES).for_each(|i| mapped.write(i, 1));
    assert!(agree(mapped.range).is_empty());
}

#[test]
fn more_runs_than_one_scan_answers_are_all_found() {
    let page = page_size_bytes();
    let range = memory::reserve(2000 * page, page).unwrap();
    // SAFETY: reserved for this test.
    unsafe { memory::map_anonymous(range, Prot::RW) }.unwrap();
    // SAFETY: as above; without it one write may bring many pages.
    unsafe { memory::advise(range, Advice::NoHugePage) }.unwrap();
    let every_other: Vec<usize> = (0..2000).step_by(2).collect();
    for i in &every_other {
        // SAFETY: inside the mapping.
        unsafe { ((range.start + i * page) as *mut u8).write_volatile(1) };
    }
    assert_eq!(agree(range), every_other);
    // SAFETY: as above.
    unsafe { memory::unmap(range) }.unwrap();
}

#[test]
fn markers_of_write_protection_are_not_private() {
    let Ok((fd, _)) = uffd::open() else {
        skip("userfaultfd", "this process may not have one");
        return;
    };
    let features = Features::PAGEFAULT_FLAG_WP | Features::WP_HUGETLBFS_SHMEM;
    let uffd = Uffd::new(fd, features).unwrap();
    let mapped = Mapped::new(PAGES, Sharing::Private);
    (0..8).for_each(|i| assert_eq!(mapped.read(i), i as u8 + 1));
    some_pages().into_iter().for_each(|i| mapped.write(i, 0xff));
    uffd.register(mapped.range, RegisterMode::WP).unwrap();
    uffd.write_protect(mapped.range, true).unwrap();
    for scanner in scanners() {
        let unlearnt = private(&scanner, mapped.range);
        assert!(some_pages().iter().all(|i| unlearnt.contains(i)), "none is missed");
        assert!((0..8).all(|i| unlearnt.contains(&i) == some_pages().contains(&i)), "file pages");
        scanner.learn_markers().unwrap();
        if scanner.knows_markers() {
            assert_eq!(private(&scanner, mapped.range), some_pages(), "{:?}", scanner.method());
        } else {
            skip("root", "what a marker looks like is told to CAP_SYS_ADMIN only");
        }
    }
    uffd.unregister(mapped.range).unwrap();
    assert_eq!(agree(mapped.range), some_pages());
}

#[test]
fn swapped_pages_are_private() {
    if !support::has_swap() {
        skip("swap", "this system has none");
        return;
    }
    let mapped = Mapped::new(PAGES, Sharing::Private);
    some_pages().into_iter().for_each(|i| mapped.write(i, 0xa0 + i as u8));
    const PAGE_OUT: usize = 21;
    // SAFETY: MADV_PAGEOUT changes no content.
    let answer =
        unsafe { libc::syscall(libc::SYS_madvise, mapped.range.start, mapped.range.len, PAGE_OUT) };
    assert_eq!(answer, 0);
    assert!(swapped(mapped.range) > 0, "some are out");
    assert_eq!(agree(mapped.range), some_pages());
    let scanner = Scanner::new(cowslip_sys::procfs::open_self("pagemap").unwrap());
    if scanner.learn_markers().is_ok() && scanner.knows_markers() {
        assert_eq!(private(&scanner, mapped.range), some_pages(), "swap is no marker");
    }
    some_pages().into_iter().for_each(|i| assert_eq!(mapped.read(i), 0xa0 + i as u8));
}

/// The number of pages of `range` with bit 62 in their entries.
fn swapped(range: VirtRange) -> usize {
    let pagemap = cowslip_sys::procfs::open_self("pagemap").unwrap();
    let page = page_size_bytes();
    let is_swapped = |start: usize| {
        let mut entry = [0; 8];
        let at = (start / page * 8) as u64;
        memfile::read_at(std::os::fd::AsFd::as_fd(&pagemap), &mut entry, at).unwrap();
        u64::from_ne_bytes(entry) >> 62 & 1 == 1
    };
    (range.start..range.end()).step_by(page).filter(|&start| is_swapped(start)).count()
}

#[test]
fn pages_migrated_by_compaction_are_not_missed() {
    let mapped = Mapped::new(PAGES, Sharing::Private);
    some_pages().into_iter().for_each(|i| mapped.write(i, 0xff));
    if std::fs::write("/proc/sys/vm/compact_memory", "1").is_err() {
        skip("root", "this process cannot start compaction");
        return;
    }
    assert_eq!(agree(mapped.range), some_pages());
}

#[test]
fn what_no_huge_page_maps_is_found_and_dropped_in_one_call() {
    let mapped = Mapped::new(PAGES, Sharing::Private);
    let [scan, entries] = scanners();
    assert_eq!(entries.small_runs(mapped.range, |_| {}), Err(cowslip_sys::Errno::NOTTY));
    if scan.method() == Method::Entries {
        skip("pagemap_scan", "this kernel has no PAGEMAP_SCAN");
        return;
    }
    some_pages().into_iter().for_each(|i| mapped.write(i, 0xff));
    let mut found = Vec::new();
    scan.small_runs(mapped.range, |run| found.push(run)).unwrap();
    for i in some_pages() {
        assert!(found.iter().any(|run| run.covers(mapped.page(i))), "page {i}");
    }
    // SAFETY: the test's own mapping, with no references into it.
    match unsafe { memory::advise_all(&found, Advice::DontNeed) } {
        Ok(()) => assert!((0..PAGES).all(|i| mapped.read(i) == i as u8 + 1)),
        Err(errno) => {
            assert_eq!(errno, cowslip_sys::Errno::INVAL);
            skip("process_madvise", "this kernel drops nothing by process_madvise");
        }
    }
}

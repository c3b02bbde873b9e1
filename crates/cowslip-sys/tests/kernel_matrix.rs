#![allow(unsafe_code)]
//! Tries the features that depend on the kernel: each must work where it is declared (`COWSLIP_EXPECT`), and fail where
//! its absence is (`COWSLIP_ABSENT`).

mod support;

use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::pagemap::probe_scan;
use cowslip_sys::thp_disable::ThpDisable;
use cowslip_sys::uffd::{self, Features, RegisterMode, Uffd};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, Errno, Result, memfile, tmpfs};

fn is_listed(variable: &str, word: &str) -> bool {
    std::env::var(variable).is_ok_and(|list| list.split(',').any(|name| name.trim() == word))
}

fn pagemap_scan() -> Result<()> {
    probe_scan(cowslip_sys::procfs::open_self("pagemap")?.as_fd())
}

/// `MADV_COLLAPSE` of base pages of a memfd, where `shmem_enabled` does not give it huge pages.
fn shmem_collapse() -> Result<()> {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    if !setting.is_ok_and(|text| text.contains("[never]") || text.contains("[advise]")) {
        println!("shmem_collapse is tried on huge pages: they are given without asking");
    }
    let file = memfile::memfd("test", memfile::MemfdKind::Shmem, CHUNK_BYTES as u64)?;
    let range = memory::reserve(CHUNK_BYTES, CHUNK_BYTES)?;
    // SAFETY: reserved for this probe.
    unsafe {
        memory::map_file(range, file.as_fd(), 0, Sharing::Shared, Prot::RW)?;
        for start in (range.start..range.end()).step_by(page_size_bytes()) {
            (start as *mut u8).write_volatile(1);
        }
        let collapsed = memory::advise(range, Advice::Collapse);
        memory::unmap(range)?;
        collapsed
    }
}

fn userfaultfd() -> Result<()> {
    let features = Features::PAGEFAULT_FLAG_WP
        | Features::EVENT_REMAP
        | Features::MISSING_SHMEM
        | Features::MINOR_SHMEM
        | Features::WP_HUGETLBFS_SHMEM;
    Uffd::new(uffd::open()?.0, features).map(drop)
}

fn uffd_move() -> Result<()> {
    Uffd::new(uffd::open()?.0, Features::MOVE).map(drop)
}

/// One write protection over two mappings of different files, which the kernel cannot join.
fn wp_across_mappings() -> Result<()> {
    let page = page_size_bytes();
    let range = memory::reserve(2 * page, page)?;
    for half in [VirtRange::new(range.start, page), VirtRange::new(range.start + page, page)] {
        let file = memfile::memfd("test", memfile::MemfdKind::Shmem, page as u64)?;
        // SAFETY: reserved for this probe.
        unsafe { memory::map_file(half, file.as_fd(), 0, Sharing::Private, Prot::RW) }?;
    }
    let features = Features::PAGEFAULT_FLAG_WP | Features::WP_HUGETLBFS_SHMEM;
    let uffd = Uffd::new(uffd::open()?.0, features)?;
    uffd.register(range, RegisterMode::WP)?;
    let answer = uffd.write_protect(range, true);
    // SAFETY: as above.
    unsafe { memory::unmap(range) }?;
    answer.map(drop)
}

fn own_tmpfs() -> Result<()> {
    tmpfs::huge_file(CHUNK_BYTES as u64).map(drop)
}

/// No huge pages but by advice, which a collapse is.
fn thp_except_advised() -> Result<()> {
    let before = ThpDisable::get()?;
    ThpDisable::ExceptAdvised.set()?;
    assert_eq!(ThpDisable::get(), Ok(ThpDisable::ExceptAdvised));
    let range = memory::reserve(CHUNK_BYTES, CHUNK_BYTES)?;
    // SAFETY: reserved for this probe.
    let collapsed = unsafe {
        memory::map_anonymous(range, Prot::RW)?;
        (range.start as *mut u8).write_volatile(1);
        let collapsed = memory::advise(range, Advice::Collapse);
        memory::unmap(range)?;
        collapsed
    };
    before.set()?;
    collapsed
}

fn swap() -> Result<()> {
    if support::has_swap() { Ok(()) } else { Err(Errno::NOENT) }
}

type Probe = fn() -> Result<()>;

#[test]
fn the_kernel_has_what_is_declared_and_lacks_what_is_not() {
    let probes: [(&str, Probe); 9] = [
        ("wp_across_mappings", wp_across_mappings),
        ("pagemap_scan", pagemap_scan),
        ("shmem_collapse", shmem_collapse),
        ("userfaultfd", userfaultfd),
        ("uffd_move", uffd_move),
        ("own_tmpfs", own_tmpfs),
        ("thp_except_advised", thp_except_advised),
        ("swap", swap),
        ("damon", cowslip_sys::damon::probe),
    ];
    for (name, probe) in probes {
        let answer = probe();
        println!("{name}: {answer:?}");
        assert!(answer.is_ok() || !is_listed("COWSLIP_EXPECT", name), "{name}: {answer:?}");
        assert!(answer.is_err() || !is_listed("COWSLIP_ABSENT", name), "{name} is there");
    }
}

#[test]
fn what_is_declared_is_known() {
    let known = [
        "wp_across_mappings",
        "pagemap_scan",
        "shmem_collapse",
        "userfaultfd",
        "uffd_move",
        "own_tmpfs",
        "thp_except_advised",
        "swap",
        "damon",
        "root",
        "huge",
        "hugetlb",
        "redis",
        "postgres",
        "perf",
        "trace",
        "chromium",
        "taskstats",
        "latency",
        "results",
    ];
    for variable in ["COWSLIP_EXPECT", "COWSLIP_ABSENT"] {
        for word in std::env::var(variable).unwrap_or_default().split(',') {
            let word = word.trim();
            assert!(word.is_empty() || known.contains(&word), "{variable} says {word:?}");
        }
    }
}

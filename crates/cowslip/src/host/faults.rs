//! Probes of the mechanisms behind freeze and thaw: holding accesses, moving and finding pages.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cowslip_sys::memfile::{self, MemfdKind, Seals};
use cowslip_sys::memory::{Prot, Sharing};
use cowslip_sys::pagemap::{Method, Scanner};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::uffd::{self, Features, Outcome, RegisterMode, Uffd};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, BorrowedFd, Errno, process};

use super::capability::{Capability, Cost, Need};
use super::hints;
use super::outcome::{ProbeResult, Proof, Refusal, median, timed};
use super::privileges::OwnProcess;
use super::scratch::Scratch;
use crate::service::FEATURES;
use crate::timing::Stopwatch;

/// Longer than any fault takes to arrive on a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn probe(own: &OwnProcess) -> Vec<Capability> {
    use Need::{Essential, Extra, Full};
    let new = Capability::new;
    vec![
        new("userfaultfd", Full, "hold threads during a freeze", open(own)),
        new("userfaultfd-features", Full, "have faults in arenas and moves told", features(own)),
        new("write-protect", Full, "hold writers to a chunk while it thaws", protect(own)),
        new("move-pages", Full, "take all pages away at once: freeze", move_pages()),
        new("pagemap-scan", Extra, "find the private pages of a chunk", scan()),
        new("markers", Extra, "tell protected from swapped pages", markers(own)),
        new("reader-seals", Essential, "know when nobody reads a frozen base", seals()),
        new("pidfd", Extra, "thaw as soon as a child ends", pidfd()),
    ]
}

fn explain(errno: Errno, own: &OwnProcess) -> Refusal {
    match errno {
        Errno::PERM | Errno::ACCESS => hints::no_userfaultfd(own),
        _ => errno.into(),
    }
}

/// Opens a userfaultfd for a probe of another feature.
fn open_fd(own: &OwnProcess) -> Result<ReservedFd, Refusal> {
    uffd::open_reserved().map_err(|errno| explain(errno, own).detail("it needs userfaultfd"))
}

fn open(own: &OwnProcess) -> ProbeResult {
    let mut origin = None;
    let open = || {
        let (fd, by) = uffd::open()?;
        origin = Some(by);
        Ok(fd)
    };
    let (_, ns) = timed(|| ReservedFd::open(open)).map_err(|errno| explain(errno, own))?;
    let through = match origin {
        Some(uffd::Origin::Device) => "by /dev/userfaultfd",
        _ => "by system call",
    };
    Ok(Proof::saw(through).costing(ns, "to open"))
}

pub(super) fn features(own: &OwnProcess) -> ProbeResult {
    let fd = open_fd(own)?;
    if Uffd::new(fd, FEATURES).is_ok() {
        return Ok(Proof::saw(names(FEATURES)));
    }
    let mut missing = Features::empty();
    for feature in FEATURES.iter() {
        let fd = open_fd(own)?;
        missing.set(feature, Uffd::new(fd, feature).is_err());
    }
    Err(Refusal::unsupported(format!("missing: {}", names(missing))))
}

fn names(features: Features) -> String {
    features.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

/// A writer in user mode hits a protected page, and one in kernel mode a protected hole.
fn protect(own: &OwnProcess) -> ProbeResult {
    let fd = open_fd(own)?;
    let uffd = Uffd::new(fd, FEATURES).map_err(Refusal::or_unsupported)?;
    let source = chunk_file()?;
    Scratch::of_file(source.as_fd(), Sharing::Shared)?.page(0).store(7, Relaxed);
    let base = chunk_file()?;
    let memory = Scratch::of_file(base.as_fd(), Sharing::Private)?;
    memory.page(0).store(1, Relaxed);
    uffd.register(memory.range(), RegisterMode::WP).map_err(Refusal::or_unsupported)?;
    set_protection(&uffd, memory.range(), true)?;
    hold_a_writer(&uffd, &memory, source.as_fd())?;

    memory.touch();
    uffd.register(memory.range(), RegisterMode::WP)?;
    let ns = median(|| {
        let ((), ns) = timed(|| set_protection(&uffd, memory.range(), true))?;
        set_protection(&uffd, memory.range(), false)?;
        Ok::<_, Refusal>(ns)
    })?;
    Ok(Proof::saw("a store and a read(2) into private shmem waited, and were not lost")
        .costing(ns, "a chunk"))
}

fn set_protection(uffd: &Uffd<ReservedFd>, range: VirtRange, protect: bool) -> Result<(), Refusal> {
    match uffd.write_protect(range, protect) {
        Ok(Outcome::Done) => Ok(()),
        Ok(_) => Err(Errno::AGAIN.into()),
        Err(errno) => Err(Refusal::or_unsupported(errno)),
    }
}

fn hold_a_writer(
    uffd: &Uffd<ReservedFd>,
    memory: &Scratch,
    source: BorrowedFd<'_>,
) -> Result<(), Refusal> {
    let page = page_size_bytes();
    let first = VirtRange::new(memory.range().start, page);
    let second = VirtRange::new(first.end(), page);
    let written = std::thread::scope(|scope| {
        // Dropped before the scope waits for the writer, on every path out.
        let _release = Release { uffd, range: memory.range() };
        let writer = std::thread::Builder::new().spawn_scoped(scope, || {
            memory.page(0).store(2, Relaxed);
            memory.read_into_page(1, source)
        });
        let writer =
            writer.map_err(|error| Refusal::unknown(0, format!("start a thread: {error}")))?;
        for (range, what) in [(first, "a store"), (second, "a read(2)")] {
            if !waits(uffd)? {
                return Err(Refusal::unknown(
                    0,
                    format!("{what} to a protected page did not wait"),
                ));
            }
            if range == first && memory.page(0).load(Relaxed) != 1 {
                return Err(Refusal::unknown(0, "a store went through a protected page"));
            }
            set_protection(uffd, range, false)?;
        }
        writer
            .join()
            .map_err(|_| Refusal::unknown(0, "the writer panicked"))?
            .map_err(Refusal::from)
    });
    written?;
    match (memory.page(0).load(Relaxed), memory.page(1).load(Relaxed)) {
        (2, 7) => Ok(()),
        _ => Err(Refusal::unknown(0, "what a held writer wrote is lost")),
    }
}

fn waits(uffd: &Uffd<ReservedFd>) -> Result<bool, Errno> {
    let mut ready = [false];
    process::wait_readable(&[uffd.as_fd()], &mut ready, Some(PATIENCE))?;
    Ok(uffd.read_events()?.faults > 0)
}

/// Lets threads that wait in a range go on.
struct Release<'a> {
    uffd: &'a Uffd<ReservedFd>,
    range: VirtRange,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let _ = self.uffd.unregister(self.range);
    }
}

fn move_pages() -> ProbeResult {
    let file = chunk_file()?;
    let from = Scratch::reserve(1)?;
    let to = Scratch::reserve(1)?;
    let ns = median(|| {
        from.map_file(file.as_fd(), Sharing::Shared, Prot::RW)?;
        from.touch();
        from.page(1).store(3, Relaxed);
        let ((), ns) = timed(|| from.move_pages_to(&to)).map_err(Refusal::or_unsupported)?;
        from.page(1).fetch_add(1, Relaxed);
        match to.page(1).load(Relaxed) {
            4 => Ok(ns),
            _ => {
                Err(Refusal::unknown(0, "the moved mapping and what it left show different memory"))
            }
        }
    })?;
    Ok(Proof::saw("mremap(MREMAP_DONTUNMAP) of base pages of a file mapped shared")
        .costing(ns, "a chunk"))
}

fn scan() -> ProbeResult {
    const EVERY: usize = 8;
    let file = chunk_file()?;
    let memory = Scratch::of_file(file.as_fd(), Sharing::Private)?;
    for index in 0..memory.pages() {
        memory.page(index).load(Relaxed);
        if index % EVERY == 0 {
            memory.page(index).store(1, Relaxed);
        }
    }
    let expected = (memory.pages() / EVERY) as u64;
    let look = |scanner: &Scanner<ReservedFd>| {
        median(|| match timed(|| scanner.private_runs(memory.range(), |_| ()))? {
            (found, ns) if found == expected => Ok(ns),
            (found, _) => {
                Err(Refusal::unknown(0, format!("{found} private pages, not {expected}")))
            }
        })
    };
    let pagemap = || ReservedFd::open(|| cowslip_sys::procfs::open_self("pagemap"));
    let by_entries = Cost { ns: look(&Scanner::with_entries(pagemap()?))?, per: "a chunk" };
    let scanner = Scanner::new(pagemap()?);
    if scanner.method() == Method::Entries {
        return Err(Refusal::unsupported(format!(
            "/proc/self/pagemap is read instead: {by_entries}"
        )));
    }
    let detail = format!("reading /proc/self/pagemap: {by_entries}");
    Ok(Proof::saw(detail).costing(look(&scanner)?, "a chunk"))
}

fn markers(own: &OwnProcess) -> ProbeResult {
    open_fd(own)?;
    let scanner = Scanner::open()?;
    let ((), ns) = timed(|| scanner.learn_markers()).map_err(Refusal::or_unsupported)?;
    if scanner.knows_markers() {
        return Ok(Proof::saw("by the swap type of a pagemap entry").costing(ns, "to learn"));
    }
    let detail = "pages that are not present count as private: a slower thaw, as exact";
    if own.may_administer {
        return Err(Refusal::unsupported(detail));
    }
    Err(Refusal::denied(detail, "pagemap shows swap types only to CAP_SYS_ADMIN"))
}

/// A file can be sealed against writing exactly when it is not mapped shared and writable.
fn seals() -> ProbeResult {
    let file = chunk_file()?;
    let memory = Scratch::reserve(1)?;
    memory.map_file(file.as_fd(), Sharing::Shared, Prot::NONE)?;
    let ns = median(|| {
        let watch = Stopwatch::start();
        match memfile::seal(file.as_fd(), Seals::WRITE) {
            Err(Errno::BUSY) => Ok(watch.elapsed_ns()),
            Err(errno) => Err(Refusal::or_unsupported(errno)),
            Ok(()) => Err(Refusal::unknown(0, "a mapped file could be sealed")),
        }
    })?;
    drop(memory);
    memfile::seal(file.as_fd(), Seals::WRITE).map_err(Refusal::or_unsupported)?;
    Ok(Proof::saw("F_SEAL_WRITE is refused while anybody maps the file").costing(ns, "a look"))
}

fn pidfd() -> ProbeResult {
    let (_, ns) = timed(|| process::pidfd(process::pid()))?;
    Ok(Proof::saw("").costing(ns, "to open"))
}

fn chunk_file() -> Result<ReservedFd, Errno> {
    ReservedFd::open(|| memfile::memfd("cowslip-probe", MemfdKind::Shmem, CHUNK_BYTES as u64))
}

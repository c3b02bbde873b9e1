//! The arenas of this process.
//!
//! ```text
//!   process      own arena: its new memory        inherited: its parents' arenas, frozen, as they were at its fork
//!   first            A                                     -
//!   its child        B, made at first need                 A
//!   its child        C                                     A, B
//! ```
//! A child writes, unmaps and discards what it inherited in its own mappings alone. It takes an inherited arena over when
//! no other process has any of it. A process, the first too, makes one of its own when it maps enough to gain by it.

use core::sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering};
use std::sync::OnceLock;

use cowslip::raw::Usage;
use cowslip::units::{ByteCount, VirtRange, page_size_bytes};
use cowslip::{Arena, ErrorKind, Prot};
use cowslip_sys::process;

use crate::config::Config;
use crate::{direct_io, leaving, limits, log, rings, say};

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Of a process and its ancestors. What a descendant of so many maps is the kernel's.
const MOST: usize = 8;
static ARENAS: [OnceLock<Arena>; MOST] = [const { OnceLock::new() }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The arena that new memory comes from is the one before this; 0: there is none yet.
static OWN: AtomicUsize = AtomicUsize::new(0);

const UNTRIED: u8 = 0;
const BEING_MADE: u8 = 1;
const SETTLED: u8 = 2;
static MAKING: AtomicU8 = AtomicU8::new(UNTRIED);

/// What the process mapped so far without an arena. A fork copies the page tables of a little in the time that a freeze takes,
/// and most processes end before they need more.
static ELSEWHERE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// An arena takes up to twelve descriptors; under a limit this low the program would miss them.
const FEW_FILES: u64 = 64;

/// The process that this one was forked from; 0 in the first.
static PARENT: AtomicI32 = AtomicI32::new(0);

/// The process, before each fork of it.
static FORKER: AtomicI32 = AtomicI32::new(0);

/// Called before a fork, which may come to nothing.
pub(crate) fn note_fork() {
    FORKER.store(process::pid(), Ordering::Relaxed);
}

/// Handle of the thread that is between the prepare and the parent or child handler of a fork; it holds the arenas'
/// locks, and other handlers of the program run on it meanwhile. Its copy in the child has the same handle.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// How many arenas that thread has locked.
static LOCKED: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn config() -> &'static Config {
    CONFIG.get_or_init(|| {
        let config = Config::from_environment();
        log::open(config.log.as_deref());
        config
    })
}

/// All arenas that there are, whatever is going on.
fn all() -> impl DoubleEndedIterator<Item = &'static Arena> {
    let count = COUNT.load(Ordering::Acquire).min(MOST);
    ARENAS[..count].iter().filter_map(OnceLock::get)
}

/// The arenas, if this thread may use them; the youngest last.
pub(crate) fn arenas() -> impl DoubleEndedIterator<Item = &'static Arena> {
    let may = COUNT.load(Ordering::Acquire) > 0 && !is_forking_here();
    all().filter(move |_| may)
}

/// The arena that this process' new memory comes from.
pub(crate) fn own() -> Option<&'static Arena> {
    let own = OWN.load(Ordering::Acquire).checked_sub(1)?;
    ARENAS[own].get()
}

/// Those that this process may freeze.
pub(crate) fn owned() -> impl Iterator<Item = &'static Arena> {
    arenas().filter(|arena| !arena.raw().is_reader())
}

/// This thread has locked so many arenas, and is about to fork.
pub(crate) fn begin_fork(arenas: usize) {
    LOCKED.store(arenas, Ordering::Relaxed);
    FORKING.store(process::thread_handle(), Ordering::Relaxed);
}

/// It is not any more.
pub(crate) fn end_fork() {
    FORKING.store(0, Ordering::Relaxed);
}

/// Whether this thread is forking, or came from a fork that it prepared.
pub(crate) fn is_forking_here() -> bool {
    let forking = FORKING.load(Ordering::Relaxed);
    forking != 0 && forking == process::thread_handle()
}

/// In a child: what is the process' own is still to be made. Arenas that another thread made during the fork are not there:
/// nothing of them was inherited, and their locks may be held for ever.
pub(crate) fn begin_child() {
    let inherited = if is_forking_here() { LOCKED.load(Ordering::Relaxed) } else { 0 };
    let is_clean = COUNT.swap(inherited, Ordering::Relaxed) == inherited;
    OWN.store(0, Ordering::Relaxed);
    MAKING.store(if is_clean { UNTRIED } else { SETTLED }, Ordering::Relaxed);
    ELSEWHERE_BYTES.store(0, Ordering::Relaxed);
    PARENT.store(FORKER.load(Ordering::Relaxed), Ordering::Relaxed);
    end_fork();
}

/// The first part of a range that lies in an arena, with the arena.
pub(crate) fn arena_part(addr: usize, len: usize) -> Option<(&'static Arena, VirtRange)> {
    let range = VirtRange::between(addr, addr.checked_add(len)?);
    let parts = arenas().map(|arena| (arena, arena.range().intersect(range)));
    parts.filter(|(_, part)| !part.is_empty()).min_by_key(|(_, part)| part.start)
}

/// A range cut where arenas begin and end: each part with its arena, if it lies in one.
pub(crate) fn parts(range: VirtRange) -> impl Iterator<Item = (Option<&'static Arena>, VirtRange)> {
    let mut rest = range;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (arena, part) = match arena_part(rest.start, rest.len) {
            Some((arena, part)) if part.start == rest.start => (Some(arena), part),
            Some((_, part)) => (None, VirtRange::between(rest.start, part.start)),
            None => (None, rest),
        };
        rest = VirtRange::between(part.end(), rest.end());
        Some((arena, part))
    })
}

/// Has `map` map something else over `range`, if all that arenas have of it is for what it `may` be for; as
/// [`RawArena::replace_mapping`](cowslip::raw::RawArena::replace_mapping), for any number of them.
pub(crate) fn replace_mapping<T>(
    range: VirtRange,
    may: &dyn Fn(Usage) -> bool,
    map: &mut dyn FnMut() -> Option<T>,
) -> Option<T> {
    match parts(range).find_map(|(arena, part)| Some((arena?, part))) {
        None => map(),
        Some((arena, part)) => {
            let rest = VirtRange::between(part.end(), range.end());
            arena.raw().replace_mapping(part, may, || replace_mapping(rest, may, map))
        }
    }
}

/// The arena for new memory; made, or taken over, if a mapping of `len` makes that worth it.
fn own_or_make(len: usize) -> Option<&'static Arena> {
    if is_forking_here() {
        return None;
    }
    if let Some(own) = own() {
        return Some(own);
    }
    if MAKING.load(Ordering::Relaxed) != UNTRIED || !is_worth(len) {
        return None;
    }
    if MAKING.compare_exchange(UNTRIED, BEING_MADE, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // Another thread makes it, or this one does and maps something on the way, or it failed.
        return None;
    }
    let limit = limits::in_force();
    if let Some(limit) = limit {
        say!("no arena, the program runs unchanged: {} is set", limit.name());
    }
    let has_few = process::file_limit() < FEW_FILES;
    if has_few {
        say!("no arena, the program runs unchanged: it may open few files, and needs them itself");
    }
    if !config().off && limit.is_none() && !has_few && !adopt_one() {
        make();
    }
    MAKING.store(SETTLED, Ordering::Release);
    own()
}

/// Whether a fork would gain by an arena from here on: enough was mapped, and half of it is in use, or twice of it comes
/// at once. Allocators map more at their start than most programs need.
fn is_worth(len: usize) -> bool {
    let enough = config().arena_after_bytes;
    let elsewhere = ELSEWHERE_BYTES.fetch_add(len, Ordering::Relaxed).saturating_add(len);
    let used_bytes = || Some(process::anonymous_pages()? as usize * page_size_bytes());
    elsewhere >= enough && (len >= 2 * enough || used_bytes().is_none_or(|used| used >= enough / 2))
}

fn make() {
    let config = config();
    let Some(place) = ARENAS.get(COUNT.load(Ordering::Relaxed)) else {
        say!("no arena of its own for a descendant in so many generations");
        return;
    };
    let made = Arena::builder(config.capacity)
        .backing(config.backing)
        .userfaultfd(!config.is_plain)
        .build();
    match made {
        Ok(arena) => {
            say!("arena of {} at {}, {}", config.capacity, arena.range(), arena.pages());
            crate::forking::have_children_give_way(&arena);
            crate::forking::limit_child_memory(&arena);
            arena.raw().ask_before_thaws(rings::is_any);
            direct_io::look_at_descriptors();
            if place.set(arena).is_ok() {
                let count = COUNT.fetch_add(1, Ordering::Release) + 1;
                OWN.store(count, Ordering::Release);
            }
        }
        Err(error) => say!("no arena, the program runs unchanged: {error}"),
    }
}

/// Takes over the arenas that no other process has any of; the youngest gives new memory from now on. Whether there
/// was one.
fn adopt_one() -> bool {
    let adopted = adopt_all();
    if let Some(index) = adopted {
        OWN.store(index + 1, Ordering::Release);
    }
    adopted.is_some()
}

/// Whether this process was forked by one that still lives, and runs what it ran then or another program.
pub(crate) fn has_parent() -> bool {
    let parent = PARENT.load(Ordering::Relaxed);
    parent != 0 && parent == process::parent_pid()
}

/// Takes over what it can: the youngest of them.
pub(crate) fn adopt_all() -> Option<usize> {
    let mut youngest = None;
    if has_parent() || leaving::is_closed() {
        return youngest;
    }
    for (index, arena) in all().enumerate().filter(|(_, arena)| arena.raw().is_reader()) {
        match arena.raw().adopt() {
            Ok(true) => {
                say!("owner of the arena at {} now, as nobody else has any of it", arena.range());
                youngest = Some(index);
            }
            Ok(false) => {}
            Err(error) => say!("{error}"),
        }
    }
    youngest
}

/// Memory for a mapping of the program, if an arena has it.
pub(crate) fn allocate(len: usize, prot: Prot) -> Option<VirtRange> {
    if leaving::is_closed() {
        return None;
    }
    let arena = own_or_make(len)?;
    if !limits::allow_memory() || leaving::is_closed() {
        arena.raw().count_passed_mapping();
        return None;
    }
    match arena.allocate(ByteCount(len as u64), prot) {
        Ok(range) => Some(range),
        Err(error) => {
            arena.raw().count_passed_mapping();
            if error.kind() != ErrorKind::Busy {
                say!("a mapping of {} goes past the arena: {error}", ByteCount(len as u64));
            }
            None
        }
    }
}

/// A bug in this library must not take the program's memory along: it ends the call, not the process.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T, instead: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(answer) => answer,
        Err(_) => {
            say!("a bug: a panic in the preload library");
            instead()
        }
    }
}

//! The arenas of this process.
//!
//! ```text
//!   process      own arena: its new memory        inherited: its parents' arenas, frozen, as they were at its fork
//!   first            A                                     -
//!   its child        B, made at first need                 A
//!   its child        C                                     A, B
//! ```
//! A child writes, unmaps and discards inherited memory in its own mappings alone. [`crate::arena::setup`] describes when it
//! gets an arena of its own.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::OnceLock;

use cowslip::Arena;
use cowslip::raw::Usage;
use cowslip::units::VirtRange;
use cowslip_sys::{Errno, process};

use crate::rt::{
    config::Config,
    log::{self, say},
};

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Arenas of a process and its ancestors. A descendant that would need another maps memory from the kernel.
const MOST: usize = 8;
static ARENAS: [OnceLock<Arena>; MOST] = [const { OnceLock::new() }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of the arena for new memory, counted from 1; 0 if there is none yet.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// The process that this one was forked from; 0 in the first.
static PARENT: AtomicI32 = AtomicI32::new(0);

/// The process that these arenas belong to. Another one that shares this memory has its own descriptors.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The process that forks; set before each fork.
static FORKER: AtomicI32 = AtomicI32::new(0);

/// Called before a fork, which may still fail.
pub(crate) fn note_fork() {
    FORKER.store(process::pid(), Ordering::Relaxed);
}

/// Handle of the thread that is between the prepare and the parent or child handler of a fork. It holds the arenas'
/// locks, and other handlers of the program run on it meanwhile. Its copy in the child has the same handle.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// The number of arenas that this thread has locked.
static LOCKED: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn config() -> &'static Config {
    CONFIG.get_or_init(|| {
        PROCESS.store(process::pid(), Ordering::Relaxed);
        let config = Config::from_environment();
        log::open(config.log.as_deref());
        config
    })
}

/// All existing arenas, even during a fork.
fn all() -> impl DoubleEndedIterator<Item = &'static Arena> {
    let count = COUNT.load(Ordering::Acquire).min(MOST);
    ARENAS[..count].iter().filter_map(OnceLock::get)
}

/// The arenas, if this thread may use them; the youngest is last.
pub(crate) fn arenas() -> impl DoubleEndedIterator<Item = &'static Arena> {
    let may = COUNT.load(Ordering::Acquire) > 0 && !is_forking_here();
    all().filter(move |_| may)
}

/// The arena that this process' new memory comes from.
pub(crate) fn own() -> Option<&'static Arena> {
    let own = OWN.load(Ordering::Acquire).checked_sub(1)?;
    ARENAS[own].get()
}

/// The arenas that this process may freeze.
pub(crate) fn owned() -> impl Iterator<Item = &'static Arena> {
    arenas().filter(|arena| !arena.raw().is_reader())
}

/// Records that this thread has locked this number of arenas and is about to fork.
pub(crate) fn begin_fork(arenas: usize) {
    LOCKED.store(arenas, Ordering::Relaxed);
    FORKING.store(process::thread_handle(), Ordering::Relaxed);
}

/// Ends [`begin_fork`].
pub(crate) fn end_fork() {
    FORKING.store(0, Ordering::Relaxed);
}

/// Returns true if this thread is forking, or is the copy of such a thread in the child.
pub(crate) fn is_forking_here() -> bool {
    let forking = FORKING.load(Ordering::Relaxed);
    forking != 0 && forking == process::thread_handle()
}

/// Called in a child: it has no arena of its own. Arenas that another thread made during the fork do not exist here:
/// none of their memory was inherited, and their locks may be held for ever. Returns true if there is room for one
/// more.
pub(crate) fn begin_child() -> bool {
    let inherited = if is_forking_here() { LOCKED.load(Ordering::Relaxed) } else { 0 };
    let has_room = COUNT.swap(inherited, Ordering::Relaxed) == inherited;
    OWN.store(0, Ordering::Relaxed);
    PARENT.store(FORKER.load(Ordering::Relaxed), Ordering::Relaxed);
    PROCESS.store(process::pid(), Ordering::Relaxed);
    end_fork();
    has_room
}

/// Returns true if one more arena can be [added](add).
pub(crate) fn can_add() -> bool {
    COUNT.load(Ordering::Relaxed) < MOST
}

/// Takes new memory from this arena from now on.
pub(crate) fn add(arena: Arena) {
    let Some(place) = ARENAS.get(COUNT.load(Ordering::Relaxed)) else { return };
    if place.set(arena).is_ok() {
        let count = COUNT.fetch_add(1, Ordering::Release) + 1;
        OWN.store(count, Ordering::Release);
    }
}

/// Takes new memory from the arena of this [index](adopt) from now on.
pub(crate) fn set_own(index: usize) {
    OWN.store(index + 1, Ordering::Release);
}

/// Takes over the arenas that it can, and returns the index of the youngest.
pub(crate) fn adopt() -> Option<usize> {
    let mut youngest = None;
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

/// Has `map` map something else over `range`, if `may` allows the usage of every part that lies in an arena; like
/// [`RawArena::replace_mapping`](cowslip::raw::RawArena::replace_mapping), for any number of arenas.
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

/// Returns false in a process that shares the memory of another (`vfork(2)`), or that an unseen fork made.
pub(crate) fn is_own_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == process::pid()
}

/// Returns true if the process that forked this one still lives, even if it runs another program by now.
pub(crate) fn has_parent() -> bool {
    let parent = PARENT.load(Ordering::Relaxed);
    parent != 0 && parent == process::parent_pid()
}

/// Ends the call, not the process, if this library panics: its bugs must not cost the program its memory.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T, instead: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(answer) => answer,
        Err(_) => {
            say!("a bug: a panic in the preload library");
            instead()
        }
    }
}

/// The errno that the program sees.
pub(crate) fn errno_of(error: &cowslip::Error) -> Errno {
    Errno::from_raw_os_error(error.errno().unwrap_or(libc::EAGAIN))
}

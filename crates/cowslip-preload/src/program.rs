//! The arenas of this process.
//!
//! ```text
//!   process      own arena: its new memory        inherited: its parents' arenas, frozen, as they were at its fork
//!   first            A                                     -
//!   its child        B, made at first need                 A
//!   its child        C                                     A, B
//! ```
//! A child writes, unmaps and discards what it inherited in its own mappings alone. What it gets beside that is in
//! [`crate::making`].

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::OnceLock;

use cowslip::Arena;
use cowslip::raw::Usage;
use cowslip::units::VirtRange;
use cowslip_sys::{Errno, process};

use crate::config::Config;
use crate::{log, say};

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Of a process and its ancestors. What a descendant of so many maps is the kernel's.
const MOST: usize = 8;
static ARENAS: [OnceLock<Arena>; MOST] = [const { OnceLock::new() }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The arena that new memory comes from is the one before this; 0: there is none yet.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// The process that this one was forked from; 0 in the first.
static PARENT: AtomicI32 = AtomicI32::new(0);

/// The process whose arenas these are. Another one that shares this memory has descriptors of its own.
static PROCESS: AtomicI32 = AtomicI32::new(0);

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
        PROCESS.store(process::pid(), Ordering::Relaxed);
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

/// In a child: it has no arena of its own. Arenas that another thread made during the fork are not there: nothing of them
/// was inherited, and their locks may be held for ever. Whether there is room for one more.
pub(crate) fn begin_child() -> bool {
    let inherited = if is_forking_here() { LOCKED.load(Ordering::Relaxed) } else { 0 };
    let has_room = COUNT.swap(inherited, Ordering::Relaxed) == inherited;
    OWN.store(0, Ordering::Relaxed);
    PARENT.store(FORKER.load(Ordering::Relaxed), Ordering::Relaxed);
    PROCESS.store(process::pid(), Ordering::Relaxed);
    end_fork();
    has_room
}

/// Whether one more arena can be [added](add).
pub(crate) fn can_add() -> bool {
    COUNT.load(Ordering::Relaxed) < MOST
}

/// New memory comes from this arena from now on.
pub(crate) fn add(arena: Arena) {
    let Some(place) = ARENAS.get(COUNT.load(Ordering::Relaxed)) else { return };
    if place.set(arena).is_ok() {
        let count = COUNT.fetch_add(1, Ordering::Release) + 1;
        OWN.store(count, Ordering::Release);
    }
}

/// New memory comes from the arena of this [index](adopt) from now on.
pub(crate) fn set_own(index: usize) {
    OWN.store(index + 1, Ordering::Release);
}

/// Takes over what it can: the youngest of them.
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

/// Whether this is not a process that was made to share the memory of another (`vfork(2)`), nor by a fork that nobody saw.
pub(crate) fn is_own_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == process::pid()
}

/// Whether this process was forked by one that still lives, and runs what it ran then or another program.
pub(crate) fn has_parent() -> bool {
    let parent = PARENT.load(Ordering::Relaxed);
    parent != 0 && parent == process::parent_pid()
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

/// The errno that the program sees.
pub(crate) fn errno_of(error: &cowslip::Error) -> Errno {
    Errno::from_raw_os_error(error.errno().unwrap_or(libc::EAGAIN))
}

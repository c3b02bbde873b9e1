//! The arenas of this process.
//!
//! ```text
//!   process      own arena: its new memory        inherited: its parents' arenas, frozen, as they were at its fork
//!   first            A                                     -
//!   its child        B, made at first need                 A
//!   its child        C                                     A, B
//! ```
//! A child writes, unmaps and discards inherited memory in its own mappings alone. [`setup`](super::setup) describes
//! when it gets an arena of its own.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use cowslip::Arena;
use cowslip::units::VirtRange;
use cowslip_sys::hold_point::{MOST_ARENAS, Ranges};

use crate::rt::fork_state::{self, is_forking_here};

/// Arenas of a process and its ancestors. A descendant that would need another maps memory from the kernel.
const MOST: usize = MOST_ARENAS;
/// Pointers, since another kind of cell would stay half-written in the child of a fork that comes while a thread fills it.
static ARENAS: [AtomicPtr<Arena>; MOST] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST];
/// The arenas' places, for other processes.
pub(crate) static RANGES: Ranges = Ranges::new();

#[unsafe(link_section = "cowslip_fork_data")]
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of the arena for new memory, counted from 1; 0 if there is none yet.
#[unsafe(link_section = "cowslip_fork_data")]
static OWN: AtomicUsize = AtomicUsize::new(0);

fn get(place: &AtomicPtr<Arena>) -> Option<&'static Arena> {
    // SAFETY: null, or an arena that is never freed (`add`).
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// All existing arenas, even during a fork.
pub(super) fn all() -> impl DoubleEndedIterator<Item = &'static Arena> {
    let count = COUNT.load(Ordering::Acquire).min(MOST);
    ARENAS[..count].iter().filter_map(get)
}

/// The arenas, if this thread may use them; the youngest is last.
pub(crate) fn arenas() -> impl DoubleEndedIterator<Item = &'static Arena> {
    let may = COUNT.load(Ordering::Acquire) > 0 && !is_forking_here();
    all().filter(move |_| may)
}

/// The arena that this process' new memory comes from.
pub(crate) fn own() -> Option<&'static Arena> {
    let own = OWN.load(Ordering::Acquire).checked_sub(1)?;
    get(&ARENAS[own])
}

/// The arenas that this process may freeze.
pub(crate) fn owned() -> impl Iterator<Item = &'static Arena> {
    arenas().filter(|arena| !arena.raw().is_reader())
}

/// Called in a child: it has no arena of its own. Arenas that another thread made during the fork do not exist here:
/// none of their memory was inherited, and their locks may be held for ever. Returns true if there is room for one
/// more.
pub(crate) fn begin_child() -> bool {
    let inherited = fork_state::locked();
    let has_room = COUNT.swap(inherited, Ordering::Relaxed) == inherited;
    OWN.store(0, Ordering::Relaxed);
    fork_state::begin_child();
    has_room
}

/// Returns true if one more arena can be [added](add).
pub(crate) fn can_add() -> bool {
    COUNT.load(Ordering::Relaxed) < MOST
}

/// Takes new memory from this arena from now on.
pub(crate) fn add(arena: Arena) {
    let index = COUNT.load(Ordering::Relaxed);
    let Some(place) = ARENAS.get(index) else { return };
    RANGES.set(index, arena.range());
    place.store(Box::into_raw(Box::new(arena)), Ordering::Release);
    COUNT.store(index + 1, Ordering::Release);
    OWN.store(index + 1, Ordering::Release);
}

/// Takes new memory from the arena of this index among [`all`] from now on.
pub(crate) fn set_own(index: usize) {
    OWN.store(index + 1, Ordering::Release);
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

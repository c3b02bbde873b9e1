//! Marks of a program, and the arenas' way back to them.
//!
//! Another process keeps the program's other memory, in a child of this one; each arena keeps a view of the same instant until
//! that child ends. All other threads of the program are stopped at both, outside of this library.

use std::fs;
use std::sync::{Mutex, PoisonError};

use cowslip::raw::{Usage, is_any_at_rest};
use cowslip::units::VirtRange;
use cowslip::{Arena, ErrorKind, Frozen, Prot, freeze_all};
use cowslip_sys::Errno;
use cowslip_sys::procfs::mappings;

use crate::arena::registry::arenas;
use crate::branch::socket;
use crate::hooks::heap;
use crate::rt::fork_state::is_any_forking;
use crate::rt::guard::errno_of;
use crate::rt::log::say;

/// Gives each arena a service thread, which a view needs, and does most of the freeze's work while other threads run. A thread
/// that is started now is in the mark.
pub(super) fn prepare(may_start: bool) -> Result<(), Errno> {
    if lacking().next().is_some() && may_start {
        heap::start_service();
    }
    if lacking().next().is_none() {
        // An error here is one of the freeze.
        arenas().for_each(|arena| _ = arena.prepare_freeze());
        return Ok(());
    }
    if may_start {
        return Err(Errno::NODEV);
    }
    // It cannot be started here.
    heap::note_thread();
    Err(Errno::AGAIN)
}

fn lacking() -> impl Iterator<Item = &'static Arena> {
    arenas().filter(|arena| arena.raw().is_reader() || !arena.raw().has_service())
}

/// Children that hold an instant at which a thread was at a branch point.
static AT_BRANCH_POINT: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// The state of one instant.
pub(super) struct Views {
    arenas: Vec<Frozen>,
    is_at_branch_point: bool,
}

/// Views of all arenas, with all other threads stopped.
pub(super) fn views() -> Result<Views, Errno> {
    check()?;
    let all: Vec<_> = arenas().collect();
    let arenas = freeze_all(&all).map_err(|error| {
        say!("no mark: {error}");
        errno_of(&error)
    })?;
    Ok(Views { arenas, is_at_branch_point: socket::is_taken() })
}

/// Fails if a thread has the library's locks, or memory in an arena is not the arena's: neither it nor the other process
/// would take that back.
fn check() -> Result<(), Errno> {
    if is_any_at_rest() || is_any_forking() {
        return Err(Errno::AGAIN);
    }
    let maps = fs::read_to_string("/proc/self/maps").map_err(|_| Errno::IO)?;
    let is_mapped = |range: VirtRange| {
        mappings(&maps).any(|mapping| !mapping.range.intersect(range).is_empty())
    };
    let is_outside = |(range, usage, _): &(VirtRange, Usage, Prot)| match usage {
        Usage::Detached | Usage::Left => true,
        // Something else may have been mapped there, and be gone.
        Usage::Foreign => is_mapped(*range),
        Usage::Free | Usage::Hole | Usage::Used => false,
    };
    let has_others = |arena: &Arena| arena.raw().parts(arena.range()).iter().any(is_outside);
    if arenas().any(has_others) { Err(Errno::NXIO) } else { Ok(()) }
}

/// Keeps the views until a child ends.
pub(super) fn keep(child: i32, views: Views) {
    let mut at_branch_point = AT_BRANCH_POINT.lock().unwrap_or_else(PoisonError::into_inner);
    // An older one of this number has ended.
    at_branch_point.retain(|older| *older != child);
    at_branch_point.extend(views.is_at_branch_point.then_some(child));
    drop(at_branch_point);
    for (arena, view) in arenas().zip(views.arenas) {
        if let Err(error) = arena.raw().keep_view(child, view) {
            say!("the mark cannot be gone back to: {error}");
        }
    }
}

/// Takes all arenas back to the views that are kept for a child. All or none.
pub(super) fn roll_back(child: i32) -> Result<(), Errno> {
    check()?;
    let all: Vec<_> = arenas().collect();
    let refused = |error: cowslip::Error| {
        say!("{error}");
        if error.kind() == ErrorKind::Busy { Errno::AGAIN } else { Errno::NXIO }
    };
    // One arena goes back whole or not at all.
    let now = if all.len() > 1 { freeze_all(&all).map_err(refused)? } else { Vec::new() };
    for (i, arena) in all.iter().enumerate() {
        // SAFETY: the program's other threads are stopped, and go back as well; this one waits until they do.
        let back = arena
            .raw()
            .with_kept_view(child, |view| unsafe { arena.raw().roll_back_handed_out(view) });
        let back = back.map_or(Err(Errno::SRCH), |back| back.map_err(refused));
        if let Err(errno) = back {
            for (arena, now) in all[..i].iter().zip(&now) {
                // SAFETY: as above.
                if unsafe { arena.raw().roll_back_handed_out(now) }.is_err() {
                    say!("an arena that was taken back stays so, and another is not");
                    std::process::abort();
                }
            }
            return Err(errno);
        }
    }
    // Threads that have come to a branch point since are there no longer, and those that have left it are there again.
    let at_branch_point = AT_BRANCH_POINT.lock().unwrap_or_else(PoisonError::into_inner);
    socket::set_taken(at_branch_point.contains(&child));
    Ok(())
}

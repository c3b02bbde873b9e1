//! Memory that leaves the arena, because an arena cannot follow the program's use of it.
//!
//! It becomes private anonymous memory with the same content at the same addresses, which freezes and forks leave to
//! the kernel. Each departure is a line in the log and counts in the arena's counters (`left_bytes`, `left_for`).
//!
//! # Safety
//! See [`crate::hooks`]. Writers wait while their memory moves: for that the service thread is started, if there are
//! other threads and it can start. Where it cannot, the calls that lead here come from the thread that uses the memory,
//! before the use that made it leave.

use core::ops::ControlFlow;

use cowslip::Arena;
use cowslip::raw::{Departure, Usage};
use cowslip::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::process::BlockedSignals;
use cowslip_sys::{Errno, user_memory};

use crate::arena::registry::{self, arenas};
use crate::arena::setup_state;
use crate::rt::guard::{errno_of, guarded};
use crate::rt::log::say;

/// Has the used memory of `range` leave, and nothing beside it.
pub(crate) fn range(arena: &'static Arena, range: VirtRange, why: Departure) -> Result<(), Errno> {
    in_pieces(arena, range, range.len.max(1), why)
}

/// Has each 2 MiB chunk leave that `addr .. addr + len` touches, as far as it is an arena's. Small pieces that come and
/// go, such as buffers, would otherwise cut the arena into as many mappings.
pub(crate) fn chunks(addr: usize, len: usize, why: Departure) -> Result<(), Errno> {
    let Some(end) = addr.checked_add(len) else { return Ok(()) };
    let _blocked = BlockedSignals::enter();
    for (arena, part) in registry::parts(VirtRange::between(addr, end)) {
        if let Some(arena) = arena {
            let chunks = part.outer_aligned(CHUNK_BYTES).intersect(arena.range());
            self::range(arena, chunks, why)?;
        }
    }
    Ok(())
}

/// Does the same before a use of the memory. If it could not leave, it is used all the same; the log says so.
pub(crate) fn before_use(addr: usize, len: usize, why: Departure) {
    let _ = guarded(|| chunks(addr, len, why).is_ok(), || false);
}

/// Does the same before a use of `count` buffers (`struct iovec`); the kernel refuses more than
/// `UIO_MAXIOV`.
pub(crate) fn before_vector_use(buffers: usize, count: usize, why: Departure) {
    if count > libc::UIO_MAXIOV as usize || arenas().next().is_none() {
        return;
    }
    user_memory::each(buffers, count, |[addr, len]: [u64; 2]| {
        before_use(addr as usize, len as usize, why);
        ControlFlow::Continue(())
    });
}

/// Has all memory leave, and keeps new memory out, even if there is no arena yet. Reserved address space is given back.
///
/// A forked child keeps the memory that it reads of its parent's: private mappings that are never frozen or thawed.
pub(crate) fn all(why: Departure) -> Result<(), Errno> {
    /// A writer waits for one piece at most, and the copy of a piece is all the memory needed besides.
    const PIECE_BYTES: usize = 32 << 20;
    let was_closed = setup_state::close();
    let _blocked = BlockedSignals::enter();
    setup_state::wait_until_done();
    if !was_closed && arenas().next().is_some() {
        say!("nothing goes into the arena any more: {why}");
    }
    for arena in arenas() {
        if let Err(error) = arena.raw().close() {
            say!("{error}");
        }
        if !arena.raw().is_reader() {
            in_pieces(arena, arena.range(), PIECE_BYTES, why)?;
        }
    }
    Ok(())
}

fn in_pieces(
    arena: &'static Arena,
    range: VirtRange,
    most: usize,
    why: Departure,
) -> Result<(), Errno> {
    let mut parts = arena.raw().parts(range);
    parts.retain(|(_, usage, _)| *usage == Usage::Used);
    for (part, ..) in parts {
        for start in (part.start..part.end()).step_by(most) {
            let piece = VirtRange::between(start, part.end().min(start + most));
            // SAFETY: see the module.
            unsafe { arena.raw().detach(piece, why) }.map_err(|error| {
                say!("{piece} could not leave the arena ({why}): {error}");
                errno_of(&error)
            })?;
        }
        say!("{part} left the arena: {why}");
    }
    Ok(())
}

//! Memory that leaves the arena, because an arena cannot follow what the program does with it.
//!
//! What leaves becomes private anonymous memory with the same content under the same addresses; freezes and forks
//! leave it to the kernel from then on. Each time is a line in the log and counts in the arena's counters
//! (`left_bytes`, `left_for`).
//!
//! # Safety
//! See [`crate::mapping`]. Writers wait while their memory moves, or the kernel copies it: [`Arena::detach`] sees to it.
//! The service thread is started for that if there are other threads.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cowslip::units::{CHUNK_BYTES, VirtRange};
use cowslip::{Arena, Departure, Usage};
use cowslip_sys::Errno;
use cowslip_sys::process::{self, Quiet};

use crate::forking::start_service;
use crate::mapping::errno_of;
use crate::program::{arena, arena_part};
use crate::say;

/// Nothing goes into an arena any more, in this process and in its children.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether [`everything`] has left.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Has what is handed out of `range` leave, and nothing beside it.
pub(crate) fn exactly(
    arena: &'static Arena,
    range: VirtRange,
    why: Departure,
) -> Result<(), Errno> {
    in_pieces(arena, range, range.len.max(1), why)
}

/// Has the chunks of 2 MiB leave that `addr .. addr + len` touches, as far as they are an arena's: so that what comes and
/// goes in small pieces, such as buffers, does not cut the arena into as many mappings.
pub(crate) fn chunks(addr: usize, len: usize, why: Departure) -> Result<(), Errno> {
    let Some((arena, part)) = arena_part(addr, len) else { return Ok(()) };
    let _quiet = Quiet::enter();
    exactly(arena, part.outer_aligned(CHUNK_BYTES).intersect(arena.range()), why)
}

/// Keeps new memory out, whether there is an arena yet or not. What the arena had reserved of the address space is given
/// back.
pub(crate) fn shut(why: Departure) {
    let was_closed = CLOSED.swap(true, Ordering::SeqCst);
    if !was_closed {
        say!("nothing goes into an arena any more: {why}");
    }
    if let Some(arena) = arena()
        && let Err(error) = arena.close()
    {
        say!("{error}");
    }
}

/// Has all memory leave, and keeps new memory out.
///
/// A forked child keeps what it reads of its parent's: private mappings that nobody will ever freeze or thaw.
pub(crate) fn everything(why: Departure) -> Result<(), Errno> {
    /// Who writes waits for a piece at most, and as much memory is needed beside what is there.
    const PIECE_BYTES: usize = 32 << 20;
    let _quiet = Quiet::enter();
    shut(why);
    match arena() {
        Some(arena) if !arena.is_reader() => in_pieces(arena, arena.range(), PIECE_BYTES, why),
        _ => Ok(()),
    }
}

/// Whether memory can leave now without a thread being started: whoever allocates cannot start one.
pub(crate) fn is_possible_at_once() -> bool {
    arena().is_some_and(Arena::has_service) || process::thread_count() == Some(1)
}

fn in_pieces(
    arena: &'static Arena,
    range: VirtRange,
    most: usize,
    why: Departure,
) -> Result<(), Errno> {
    let mut parts = arena.parts(range);
    parts.retain(|(_, usage, _)| *usage == Usage::Used);
    if !parts.is_empty() && process::thread_count() != Some(1) {
        start_service(arena);
    }
    for (part, ..) in parts {
        for start in (part.start..part.end()).step_by(most) {
            let piece = VirtRange::between(start, part.end().min(start + most));
            // SAFETY: see the module.
            unsafe { arena.detach(piece, why) }.map_err(|error| {
                note_failure(why, &error);
                errno_of(&error)
            })?;
        }
        say!("{part} left the arena: {why}");
    }
    Ok(())
}

/// The first of its kind: others may come with every read.
fn note_failure(why: Departure, error: &cowslip::Error) {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let bit = 1 << why as u32;
    if SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        say!(
            "it should leave the arena ({why}) and could not; more of that kind is not said: {error}"
        );
    }
}

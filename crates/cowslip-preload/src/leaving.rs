//! Memory that leaves the arena, because an arena cannot follow what the program does with it.
//!
//! What leaves becomes private anonymous memory with the same content under the same addresses; freezes and forks
//! leave it to the kernel from then on. Each time is a line in the log and counts in the arena's counters
//! (`left_bytes`, `left_for`).
//!
//! # Safety
//! See [`crate::mapping`]. Writers wait while their memory moves if the service thread runs; where it does not, the
//! calls that lead here are made by whoever uses the memory, before he uses it in the way that made it leave.

use cowslip::units::{CHUNK_BYTES, VirtRange};
use cowslip::{Arena, Departure, Usage};
use cowslip_sys::Errno;
use cowslip_sys::process::Quiet;

use crate::mapping::errno_of;
use crate::program::arena_part;
use crate::say;

/// Has what is handed out of `range` leave, and nothing beside it.
pub(crate) fn exactly(arena: &Arena, range: VirtRange, why: Departure) -> Result<(), Errno> {
    let used = |(_, usage, _): &(VirtRange, Usage, _)| usage.is_used();
    for (part, ..) in arena.parts(range).into_iter().filter(used) {
        // SAFETY: see the module.
        unsafe { arena.detach(part, why) }.map_err(|error| errno_of(&error))?;
        say!("{part} left the arena: {why}");
    }
    Ok(())
}

/// Has the chunks of 2 MiB leave that `addr .. addr + len` touches, as far as they are an arena's: so that what comes and
/// goes in small pieces, such as buffers, does not cut the arena into as many mappings.
pub(crate) fn chunks(addr: usize, len: usize, why: Departure) -> Result<(), Errno> {
    let Some((arena, part)) = arena_part(addr, len) else { return Ok(()) };
    let _quiet = Quiet::enter();
    exactly(arena, part.outer_aligned(CHUNK_BYTES).intersect(arena.range()), why)
}

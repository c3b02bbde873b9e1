//! A base that another arena owns.
//!
//! ```text
//!  borrowed   R ──MAP_PRIVATE─▶ file of another arena, kept as it is by a pin
//!      │ its content copied into the arena's own file, where no thread can see it yet: *filled*
//!      ▼ then, several together, as frozen chunks: write-protect, copy private pages, map shared, wake
//!  live       R ──MAP_SHARED──▶ own file
//! ```
//! No process writes the base, so that it is copied while threads write to R: their private pages follow, under write
//! protection. After a thaw that fails half-way a chunk maps both files, and is *partial* from then on: its own file
//! holds all of the base by then.
//!
//! # Invariants
//! * **I2, of the lender**: the pin is mapped before any part of the base, inherited by exactly the processes that
//!   inherit the base, and dropped after the last mapping of the base is gone.
//! * Children read the lender's base, never the own file under a borrowed chunk: no thaw waits for them, and that file
//!   may hold later writes of the parent. A child that takes it over empties it there first
//!   ([`crate::raw::RawArena::adopt`]).
//! * The own file's content under a borrowed chunk is a part of its base, left by a thaw that failed.

use cowslip_sys::Errno;
use cowslip_sys::units::VirtRange;

use super::state::{Chunk, Shared, State};

impl Shared {
    /// Copies the base of the borrowed ones of `chunks` to the arena's own file.
    pub(crate) fn fill_borrowed(
        &self,
        state: &State,
        chunks: std::ops::Range<usize>,
    ) -> Result<(), Errno> {
        for chunk in chunks.filter(|chunk| state.chunk(*chunk) == Chunk::Borrowed) {
            let range = self.chunk_range(chunk, 1);
            let base = state.borrowed_base.as_ref().ok_or(Errno::BADF)?;
            if !base.filled().contains(&chunk) {
                if !state.vma_map.is_unused(range) {
                    base.fill(state.file_at(range.start), self.range, range)?;
                }
                base.set_filled(chunk);
            }
        }
        Ok(())
    }

    /// Empties the arena's own file in `range`: whole chunks in which nothing maps it.
    pub(crate) fn empty_file(&self, state: &State, range: VirtRange) -> Result<(), Errno> {
        state.by_file(range).try_for_each(|part| self.punch_in(state.file_at(part.start), part))
    }

    /// Drops the borrowed base if nothing maps it any more.
    pub(crate) fn end_borrowing(&self, state: &mut State) {
        if state.map.count(Chunk::Borrowed) > 0 || state.map.count(Chunk::Partial) > 0 {
            return;
        }
        if state.borrowed_base.as_ref().is_some_and(|base| !base.is_left(&state.vma_map)) {
            state.borrowed_base = None;
        }
    }
}

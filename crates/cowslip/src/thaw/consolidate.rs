//! An arena of several files becomes one of a single file again, while nothing is read.
//!
//! ```text
//!   several files, all live ──▶ used chunks of the smaller ones moved to the fullest ──▶ free space mapped to it ──▶ one file
//! ```
//! Each run of one file is a mapping that a freeze has to move, and each file a descriptor. A writer that meets a move waits
//! for the copy of one chunk.

use std::sync::Arc;

use cowslip_sys::Errno;

use crate::arena::chunk::Thawing;
use crate::arena::state::{Chunk, Shared, State};
use crate::mapping::backing_file::BackingFile;
use crate::memory::chunk_map::MOST_FILES;
use crate::memory::vma_map::Usage;
use crate::plan::task::Pace;

/// The file that holds the most memory in use; exposed files come last, since nothing becomes live in them.
fn fullest(shared: &Shared, state: &State) -> u8 {
    let mut used = [0; MOST_FILES];
    for span in state.vma_map.within(shared.range).filter(|span| span.usage == Usage::Used) {
        for part in state.by_file(span.range) {
            used[usize::from(state.map.file(state.vma_map.chunk_at(part.start)))] += part.len;
        }
    }
    let key =
        |(number, file): &(u8, &Arc<BackingFile>)| (!file.is_exposed(), used[usize::from(*number)]);
    state.files.all().max_by_key(key).expect("an arena has a file").0
}

/// Moves the next chunk in use from `from` on that lies in another file than the fullest; after the last, free space. True if
/// there may be more.
pub(super) fn move_next(shared: &Shared, state: &mut State, from: usize) -> Result<bool, Errno> {
    let target = fullest(shared, state);
    let end = shared.chunks_of(shared.range).end;
    let is_elsewhere = |state: &State, chunk: usize| {
        state.chunk(chunk) == Chunk::Live && state.map.file(chunk) != target
    };
    for chunk in from..end {
        let range = shared.chunk_range(chunk, 1);
        let stays = !is_elsewhere(state, chunk) || state.is_small(chunk);
        if stays || state.vma_map.is_unused(range) {
            continue;
        }
        state.plan.consolidate.pass_to(chunk + 1);
        let [(piece, _)] = state.pieces(range)[..] else { continue };
        if piece != range || !state.vma_map.is_all(range, Usage::Used) {
            continue;
        }
        let service = shared.service(state).ok_or(Errno::NODEV)?;
        let before = state.map.file(chunk);
        let moved = Thawing::new(shared, &service).move_out(state, chunk, target, Pace::AtOnce);
        service.window.close();
        moved?;
        // Nothing reads the place any more, and small chunks may keep its file open. If it fails, it goes with the file.
        let _ = shared.punch_in(state.files.get(before), range);
        return Ok(true);
    }
    let mut at = 0;
    let is_free = |state: &State, chunk: usize| {
        is_elsewhere(state, chunk) && state.vma_map.is_unused(shared.chunk_range(chunk, 1))
    };
    while let Some(first) = (at..end).find(|chunk| is_free(state, *chunk)) {
        at = (first..end).find(|chunk| !is_free(state, *chunk)).unwrap_or(end);
        state.map.set_file(first..at, target);
        for (piece, prot) in state.pieces(shared.chunk_range(first, at - first)) {
            shared.map_live(state, piece, prot)?;
        }
    }
    state.files.forget_target();
    shared.release_unread(state, None);
    Ok(false)
}

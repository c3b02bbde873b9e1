//! Counts the memory that is held only for readers.

use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};
use cowslip_sys::{Errno, process};

use super::state::{Chunk, Shared, State};

/// True if one more chunk, held twice, might exceed the limit.
pub(crate) fn is_limit_near(shared: &Shared, state: &State) -> bool {
    let below = |limit: u64| limit.saturating_sub(2 * CHUNK_BYTES as u64);
    let limit = shared.copy_limit.limit();
    limit.is_some_and(|limit| copies_exceed(shared, state, below(limit)))
}

/// True if memory that is held only for readers comes to more than this: private copies of frozen memory, and places
/// that chunks moved out of.
pub(crate) fn copies_exceed(shared: &Shared, state: &State, limit_bytes: u64) -> bool {
    let page_bytes = page_size_bytes() as u64;
    let vacated_bytes = state.files.vacated_bytes();
    let Some(limit_bytes) = limit_bytes.checked_sub(vacated_bytes) else { return true };
    // Cheap, and an upper bound.
    if process::anonymous_pages().is_some_and(|pages| pages * page_bytes <= limit_bytes) {
        return false;
    }
    let most = limit_bytes / page_bytes;
    count(shared, state, most).is_ok_and(|pages| pages > most)
}

fn count(shared: &Shared, state: &State, most: u64) -> Result<u64, Errno> {
    let Some(service) = shared.service(state) else { return Ok(0) };
    let mut pages = 0;
    for run in state.map.runs(Chunk::is_private) {
        for (piece, _) in state.pieces(shared.chunk_range(run.start, run.len())) {
            pages += service.scanner.count_private(piece, most.saturating_sub(pages))?;
            if pages > most {
                return Ok(pages);
            }
        }
    }
    Ok(pages)
}

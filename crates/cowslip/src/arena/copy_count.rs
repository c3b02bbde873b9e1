//! Counts the memory that is held only for readers.

use cowslip_sys::Errno;
use cowslip_sys::procfs::own;
use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};

use super::copies::ask_bytes;
use super::state::{Chunk, Shared, State};

/// True if one more chunk, held twice, might have a child end.
pub(crate) fn is_limit_near(shared: &Shared, state: &State) -> bool {
    let Some(limit) = shared.copy_limit.limit() else { return false };
    let most = ask_bytes(limit).saturating_sub(2 * CHUNK_BYTES as u64);
    copied_bytes(shared, state, most) > most
}

/// The memory that is held only for readers: private copies of frozen memory, and places that chunks moved out of.
/// Exact if it is between `most` and half of it; otherwise less than that, or more.
pub(crate) fn copied_bytes(shared: &Shared, state: &State, most: u64) -> u64 {
    let page_bytes = page_size_bytes() as u64;
    let vacated_bytes = state.files.vacated_bytes();
    // Cheap, and an upper bound.
    let private_bytes = own::anonymous_pages().map(|pages| pages * page_bytes);
    if let Some(bytes) = private_bytes.filter(|bytes| vacated_bytes + bytes <= most / 2) {
        return vacated_bytes + bytes;
    }
    let most_pages = most.saturating_sub(vacated_bytes) / page_bytes;
    vacated_bytes + count(shared, state, most_pages).map_or(0, |pages| pages * page_bytes)
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

//! Deferred freeing: chunks that were given back while frozen.
//!
//! This process no longer uses their content, but children may read it. They are reclaimed at the next allocation, if
//! they have no readers by then: a program that maps, forks, and unmaps in turn needs no more memory under Cowslip, and
//! memory given back between two forks need not wait for a thaw.

use cowslip_sys::process;

use super::inheritance::youngest_read;
use super::state::{Role, Shared, State};
use crate::plan::settings::thaw::RECLAIM;

/// Makes chunks without readers live, all zeroes.
pub(crate) fn reclaim(shared: &Shared, state: &mut State) {
    if state.deferred_free.chunks.is_empty() || state.role != Role::Owner {
        return;
    }
    let now_ns = process::now_ns();
    if !state.plan.reclaim.is_due(now_ns) {
        return;
    }
    let others = youngest_read(shared, state);
    let read = others.max(state.generations.youngest_view());
    let mut left = std::mem::take(&mut state.deferred_free.chunks);
    let before = left.len();
    left.retain(|&chunk| {
        let is_free = state.vma_map.is_vacant(shared.chunk_range(chunk, 1));
        // A thaw may have come first.
        if !state.chunk(chunk).is_private() || !is_free {
            return false;
        }
        !state.map.is_unread(chunk, read) || shared.revive(state, chunk).is_err()
    });
    let has_found = left.len() < before;
    state.deferred_free.chunks = left;
    if has_found {
        state.plan.reclaim.succeed();
    } else {
        state.plan.reclaim.put_off(now_ns, RECLAIM);
    }
}

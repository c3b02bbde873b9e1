//! Chunks that were given back while frozen.
//!
//! This process no longer uses their content, but children may read it. They are reused at the next allocation, if they
//! have no readers by then: a program that maps, forks, and unmaps in turn needs no more memory under Cowslip, and
//! memory given back between two forks need not wait for a thaw.

use cowslip_sys::process;

use super::backoff::backoff;
use super::inheritance::youngest_read;
use super::state::{Role, Shared, State};

const LOOK_FIRST_NS: u64 = 500_000;
const LOOK_LAST_NS: u64 = 250_000_000;

/// Chunks that wait for their readers to end.
#[derive(Debug, Default)]
pub(crate) struct Limbo {
    chunks: Vec<usize>,
    /// No look before this time.
    not_before_ns: u64,
    delay_ns: u64,
}

impl Limbo {
    /// Adds a private chunk that has nothing in use any more.
    pub(crate) fn add(&mut self, chunk: usize) {
        self.chunks.push(chunk);
    }
}

/// Makes chunks without readers live, all zeroes.
pub(crate) fn reuse(shared: &Shared, state: &mut State) {
    if state.limbo.chunks.is_empty() || state.role != Role::Owner {
        return;
    }
    if process::now_ns() < state.limbo.not_before_ns {
        return;
    }
    let others = youngest_read(shared, state);
    let read = others.max(state.generations.youngest_view());
    let mut left = std::mem::take(&mut state.limbo.chunks);
    let before = left.len();
    left.retain(|&chunk| {
        let is_free = state.vma_map.is_vacant(shared.chunk_range(chunk, 1));
        // A thaw may have come first.
        if !state.chunk(chunk).is_private() || !is_free {
            return false;
        }
        !state.is_unread(chunk, read) || shared.revive(state, chunk).is_err()
    });
    let has_found = left.len() < before;
    state.limbo.chunks = left;
    if has_found {
        state.limbo.delay_ns = 0;
    } else {
        let delay = backoff(&mut state.limbo.delay_ns, LOOK_FIRST_NS, LOOK_LAST_NS);
        state.limbo.not_before_ns = process::now_ns() + delay.as_nanos() as u64;
    }
}

//! Assigns places in a file to several threads.
//!
//! Whole chunks get theirs in the order of the chunks, so that chunks that are adjacent in memory are adjacent in the
//! file, and one mapping shows them all. A thread waits until those before it have chosen, not until they have written.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::format::PAGE_BYTES;
use super::layout::Layout;

/// A thread that takes longer, or has failed, is not waited for: then there are two mappings.
const PATIENCE: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Places {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    layout: Layout,
    /// The current turn, and those that chose before theirs.
    turn: usize,
    early: BTreeSet<usize>,
}

impl State {
    fn pass(&mut self, turn: usize) {
        self.early.insert(turn);
        while self.early.remove(&self.turn) {
            self.turn += 1;
        }
    }
}

impl Places {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place for `bytes`; see [`Layout::place`].
    pub(super) fn take(&self, turn: usize, bytes: u64, alignment_bytes: u64) -> u64 {
        let mut state = self.locked();
        if alignment_bytes > PAGE_BYTES as u64 {
            let is_early = |state: &mut State| state.turn < turn;
            let waited = self.moved.wait_timeout_while(state, PATIENCE, is_early);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let place = state.layout.place(bytes, alignment_bytes);
        state.pass(turn);
        drop(state);
        self.moved.notify_all();
        place
    }

    /// Skips a turn without a place.
    pub(super) fn pass(&self, turn: usize) {
        self.locked().pass(turn);
        self.moved.notify_all();
    }

    /// The end of the last place taken.
    pub(super) fn end_bytes(&self) -> u64 {
        self.locked().layout.end_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cowslip_sys::units::CHUNK_BYTES;

    #[test]
    fn whole_chunks_lie_in_order_if_all_choose_in_time() {
        let places = Places::default();
        let whole = CHUNK_BYTES as u64;
        // Unaligned bytes do not wait, and a skipped turn is not waited for.
        assert_eq!(places.take(3, 4096, 4096), 4096);
        places.pass(1);
        let [first, third] = [0, 2].map(|turn| places.take(turn, whole, whole));
        assert_eq!([first, third], [whole, 2 * whole]);
        assert_eq!(places.end_bytes(), 3 * whole);
        assert_eq!(places.locked().turn, 4);
        std::thread::scope(|scope| {
            let places = &places;
            for turn in (4..40).rev() {
                scope.spawn(move || places.take(turn, whole, whole));
            }
        });
        assert_eq!(places.end_bytes(), 39 * whole);
        assert_eq!(places.locked().turn, 40);
    }

    #[test]
    fn nobody_waits_for_ever_for_who_failed() {
        let places = Places::default();
        assert_eq!(places.take(7, CHUNK_BYTES as u64, CHUNK_BYTES as u64), CHUNK_BYTES as u64);
    }
}

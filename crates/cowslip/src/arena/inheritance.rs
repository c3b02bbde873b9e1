//! The part of frozen memory that children inherit, and so its readers.

use cowslip_sys::error::{During, Result};
use cowslip_sys::memory::Advice;

use super::state::{Chunk, ForkInheritance, Shared, State};

/// The youngest generation that other processes read: chunks frozen after it have no other readers. Children made from
/// here on, except by a [`PreparedFork`](crate::raw::PreparedFork), inherit no frozen memory.
pub(crate) fn youngest_read(shared: &Shared, state: &mut State) -> Option<u64> {
    match withdraw(shared, state) {
        Ok(()) => {
            let read = state.generations.youngest_read();
            if state.generations.has_ended() {
                state.files.look();
            }
            read
        }
        // As long as the token stays mapped here everything counts as read.
        Err(_) => Some(u64::MAX),
    }
}

/// Ends the offer: children made from now on, by whatever means, are not readers.
fn withdraw(shared: &Shared, state: &mut State) -> Result<()> {
    if state.inheritance == ForkInheritance::None {
        return Ok(());
    }
    state.inheritance = ForkInheritance::Part;
    set_inherited(shared, state, Advice::DontFork).during("keep an arena from children")?;
    state.generations.hide()?;
    state.inheritance = ForkInheritance::None;
    Ok(())
}

/// Sets whether children inherit frozen memory. Unless it is offered, only children of a
/// [`PreparedFork`](crate::raw::PreparedFork) get it: every process that has it is counted as a reader.
pub(crate) fn set_inherited(
    shared: &Shared,
    state: &State,
    advice: Advice,
) -> cowslip_sys::Result<()> {
    let base = state.borrowed_base.as_ref();
    if let Some(base) = base.filter(|_| advice == Advice::DoFork) {
        // First: every child with a mapping of the base must keep the base.
        base.set_inherited(advice)?;
    }
    let mut result = Ok(());
    for run in state.map.runs(Chunk::is_private) {
        for (piece, _) in state.pieces(shared.chunk_range(run.start, run.len())) {
            // It can fail only where a mapping would have to be split, and a piece is whole mappings.
            result = result.and(shared.piece(piece).advise(advice));
        }
    }
    let base = base.filter(|base| advice == Advice::DontFork && !base.is_left(&state.vma_map));
    result.and_then(|()| base.map_or(Ok(()), |base| base.set_inherited(advice)))
}

//! Takes an arena back to an earlier freeze, in place.
//!
//! ```text
//!        view ──▶ file 0  ████████          file 0  ████████ ◀── R, privately, and the view
//!        R    ──▶ file 1  ··█··██·   ──▶    file 1  what later views read of it
//! ```
//! Each chunk maps the view's place again, privately, and is frozen for the view's generation. All mappings are made elsewhere
//! first: a refusal of the kernel comes before anything changes (I4).
//!
//! No thread touches the arena: the caller of [`Arena::roll_back`] ensures that. The mapped memory is the base of a
//! view, which stays as long as the view does.

use std::io::Write;
use std::sync::Arc;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::memory::Advice;
use cowslip_sys::process;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use super::Frozen;
use super::snapshot::not_mapped;
use crate::arena::Arena;
use crate::arena::inheritance::{set_inherited, youngest_read};
use crate::arena::state::{Chunk, Event, Hold, Shared, State};
use crate::mapping::OwnSpace;
use crate::memory::vma_map::Usage;
use crate::retry::retry_until_ok;
use crate::thaw;

const OPERATION: &str = "roll an arena back";

/// A part of the arena that goes back.
struct Part {
    piece: VirtRange,
    /// Number of the file that held it.
    file: u8,
    /// A private mapping of its place there.
    ready: OwnSpace,
}

/// Restores the content of an arena, which no thread touches, at the freeze of `view`: see [`Arena::roll_back`].
pub(crate) fn roll_back(arena: &Arena, view: &Frozen) -> Result<()> {
    let is_its_own = view.handle().is_some_and(|handle| Arc::ptr_eq(handle, &arena.handle));
    if !is_its_own {
        return Err(Error::new(ErrorKind::Usage, OPERATION)
            .because("the view is of another arena, or of this process' parent"));
    }
    let shared = arena.shared();
    shared.wait_restored();
    let mut state = shared.lock();
    check(shared, &state, view)?;
    thaw::complete_partial(shared, &mut state)?;
    // From here on children inherit no memory that a later thaw changes.
    let _ = youngest_read(shared, &mut state);
    let parts = prepare(shared, &state, view)?;
    put(shared, &mut state, parts)?;
    zero_newer(shared, &mut state, view)
}

fn check(shared: &Shared, state: &State, view: &Frozen) -> Result<()> {
    let busy = |reason| Err(Error::new(ErrorKind::Busy, OPERATION).because(reason));
    match state.hold() {
        Some(Hold::Reader) => return busy("this is a forked child that reads its parent's arena"),
        Some(Hold::Pinned) => {
            return busy("its page frames are registered with the kernel or a device");
        }
        Some(Hold::Io) => return busy("its memory is held for direct I/O"),
        Some(Hold::Paused) | None => {}
    }
    if process::stands_in(shared.range) {
        return busy("this thread's stack is in the arena");
    }
    if state.map.count(Chunk::Borrowed)
        + state.map.count(Chunk::Missing)
        + state.map.count(Chunk::Poisoned)
        > 0
    {
        return busy("a part of it is not restored");
    }
    let is_foreign = |range: VirtRange| {
        let mut now = state.vma_map.within(range);
        now.any(|span| matches!(span.usage, Usage::Detached | Usage::Foreign))
    };
    let has_left = |range: VirtRange| state.has_left(range.outer_aligned(CHUNK_BYTES));
    if view.used.iter().any(|(range, _)| is_foreign(*range) || has_left(*range)) {
        return busy(
            "memory that was in use then has left the arena, or something else is mapped there",
        );
    }
    Ok(())
}

/// Maps elsewhere the chunks that were in use then and are in use now.
fn prepare(shared: &Shared, state: &State, view: &Frozen) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    for shown in &view.layout {
        let (number, file) = state
            .files
            .all()
            .find(|(_, file)| Arc::ptr_eq(file, &shown.file))
            .expect("a file stays as long as a view shows it");
        let is_wanted = |chunk: &usize| !state.vma_map.is_unused(shared.chunk_range(*chunk, 1));
        let mut at = shared.chunks_of(shown.range);
        // Parts of several protections meet in a chunk, which goes back whole.
        if let Some(last) = parts.last() {
            at.start = at.start.max(shared.chunks_of(last.piece).end);
        }
        while let Some(first) = at.clone().find(is_wanted) {
            let end = (first..at.end).find(|chunk| !is_wanted(chunk)).unwrap_or(at.end);
            at.start = end;
            for (piece, prot) in state.vma_map.pieces(shared.chunk_range(first, end - first)) {
                let made = file
                    .check_identity()
                    .and_then(|()| OwnSpace::private_of(file, shared.piece(piece), prot));
                let ready = made.map_err(|errno| not_mapped(errno).on(piece))?;
                parts.push(Part { piece, file: number, ready });
            }
        }
    }
    Ok(parts)
}

/// Moves the mappings into place, and notes that.
fn put(shared: &Shared, state: &mut State, mut parts: Vec<Part>) -> Result<()> {
    for (i, part) in parts.iter_mut().enumerate() {
        let moved = retry_until_ok(|| part.ready.move_front_to(*shared.piece(part.piece)));
        match moved {
            Ok(()) => {}
            Err(errno) if i == 0 => return Err(not_mapped(errno).on(part.piece)),
            Err(_) => {
                // A mapping that is moved makes room for itself, so that the kernel refuses the first or none.
                let _ = std::io::stderr().write_all(
                    b"cowslip: the kernel would not move all of a mapping while an arena was rolled back\n",
                );
                std::process::abort();
            }
        }
    }
    for Part { piece, file, .. } in &parts {
        shared.mark_base(state, *piece);
        state.unmapped.add(*piece);
        state.plan.residency.freeze();
        for chunk in shared.chunks_of(*piece) {
            give_base_back(shared, state, chunk, *file);
        }
    }
    if shared.service(state).is_none() {
        let others = youngest_read(shared, state);
        shared.release_unread(state, others);
    }
    state.files.forget_target();
    state.plan.freeze();
    let _ = set_inherited(shared, state, Advice::DontFork);
    shared
        .counters
        .frozen_chunks
        .store(state.not_live() as u64, std::sync::atomic::Ordering::Relaxed);
    shared.notify(state);
    Ok(())
}

/// Notes that a chunk maps its place in the file of that number again, privately.
fn give_base_back(shared: &Shared, state: &mut State, chunk: usize, file: u8) {
    state.tracking.forget(chunk);
    state.density.forget(chunk);
    state.map.set_mapped_singly(chunk, false);
    let before = state.map.file(chunk);
    if before != file {
        let is_read = state.chunk(chunk).has_base();
        shared.vacate(state, chunk, file);
        if !is_read {
            state.files.abandon(before, chunk);
        }
        if let Some(since) = state.files.reoccupy(file, chunk) {
            state.map.set_since(chunk, since);
        }
    }
    if state.chunk(chunk) != Chunk::Frozen {
        state.change(chunk, Event::RollBack);
    }
}

/// Makes memory handed out since then read as zeroes.
fn zero_newer(shared: &Shared, state: &mut State, view: &Frozen) -> Result<()> {
    let mut at = shared.range.start;
    let then = view.used.iter().map(|(range, _)| *range);
    let end = VirtRange::new(shared.range.end(), 0);
    for range in then.chain([end]) {
        let gap = VirtRange::between(at, range.start);
        for newer in state.vma_map.used_within(gap) {
            shared.discard(state, newer)?;
        }
        at = range.end();
    }
    Ok(())
}

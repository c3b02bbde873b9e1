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
//!
//! In a program whose other memory goes back as well, memory that was handed out or given back since does so too
//! ([`Scope::HandedOut`]).

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
use crate::memory::vma_map::{Span, Usage};
use crate::retry::retry_until_ok;
use crate::thaw;

const OPERATION: &str = "roll an arena back";

/// The parts of an arena's state that go back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// The content of memory that is handed out now.
    Content,
    /// Also the memory that is handed out, and its protection.
    HandedOut,
}

/// A part of the arena that goes back.
struct Part {
    piece: VirtRange,
    /// Number of the file that held it.
    file: u8,
    /// A private mapping of its place there.
    ready: OwnSpace,
}

/// Restores the content of an arena, which no thread touches, at the freeze of `view`: see [`Arena::roll_back`].
pub(crate) fn roll_back(arena: &Arena, view: &Frozen, scope: Scope) -> Result<()> {
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
    let now: Vec<Span> = state.vma_map.within(shared.range).collect();
    let taken = match scope {
        Scope::Content => Ok(()),
        Scope::HandedOut => hand_out_again(shared, &mut state, view),
    };
    let put = taken
        .and_then(|()| prepare(shared, &state, view))
        .and_then(|parts| put(shared, &mut state, parts));
    if put.is_err() {
        use_as(&mut state, view, &now);
        return put;
    }
    shared.count_used(&state);
    match scope {
        Scope::Content => zero_newer(shared, &mut state, view),
        Scope::HandedOut => {
            // Memory that cannot be unmapped stays, and is not used.
            newer(&state, shared.range, view).into_iter().for_each(|newer| {
                let _ = shared.unmap(&mut state, newer);
            });
            Ok(())
        }
    }
}

/// Hands out the memory of `view` that was given back since, and notes the protections of then. The memory has no content yet.
fn hand_out_again(shared: &Shared, state: &mut State, view: &Frozen) -> Result<()> {
    for (range, prot) in &view.used {
        if !shared.claim(state, *range, *prot)? {
            return Err(Error::new(ErrorKind::Busy, OPERATION)
                .on(*range)
                .because("something else is mapped where memory was given back"));
        }
        state.vma_map.set(*range, Usage::Used, *prot);
    }
    Ok(())
}

/// Undoes [`hand_out_again`]: all of it that was not handed out is free now.
fn use_as(state: &mut State, view: &Frozen, before: &[Span]) {
    let used = |spans: Vec<Span>| spans.into_iter().filter(|span| span.usage.is_used());
    for (range, _) in &view.used {
        for span in used(state.vma_map.within(*range).collect()) {
            state.vma_map.set(span.range, Usage::Free, span.prot);
        }
    }
    for span in used(before.to_vec()) {
        state.vma_map.set(span.range, span.usage, span.prot);
    }
}

/// Memory that is handed out and was not then.
fn newer(state: &State, whole: VirtRange, view: &Frozen) -> Vec<VirtRange> {
    let mut at = whole.start;
    let mut newer = Vec::new();
    let then = view.used.iter().map(|(range, _)| *range);
    for range in then.chain([VirtRange::new(whole.end(), 0)]) {
        newer.extend(state.vma_map.used_within(VirtRange::between(at, range.start)));
        at = range.end();
    }
    newer
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
    newer(state, shared.range, view).into_iter().try_for_each(|newer| shared.discard(state, newer))
}

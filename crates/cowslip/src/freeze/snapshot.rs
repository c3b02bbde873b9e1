#![allow(unsafe_code)]
//! The instant of a freeze: from shared to private.
//!
//! # Safety
//! Everything here maps parts of an arena, which this library owns. Under each address the program
//! sees the same content before and after: the pages of the file as they are at the instant in which
//! no thread can reach them. Views are reserved here and handed out when all is done.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

use cowslip_sys::Errno;
use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::uffd::RegisterMode;
use cowslip_sys::units::{CHUNK_BYTES, GIB_BYTES, VirtRange, page_size_bytes};

use super::FreezeMethod;
use super::colocate::Colocate;
use super::pinned::Copies;
use super::thaw;
use crate::arena::backing_file::{POOL_HINT, Pages, offset};
use crate::arena::chunk::at_once;
use crate::arena::inheritance::set_inherited;
use crate::arena::state::{Chunk, Shared, State};
use crate::arena::vma_map::Usage;
use crate::insist::insist;
use crate::service::Service;

mod clean;

const OPERATION: &str = "freeze";

/// One arena of a freeze, locked.
pub(crate) struct Snapshot<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) state: MutexGuard<'a, State>,
    /// Mappings to make private: each of one protection, in live or clean chunks that hold used memory.
    pieces: Vec<(VirtRange, Prot)>,
    /// Those in clean chunks: what was written to them since moves along.
    clean: Vec<VirtRange>,
    /// Up to where they were moved.
    moved_to: usize,
    /// How many of them are private now.
    done: usize,
    /// Of what is frozen now.
    generation: u64,
    view: VirtRange,
    /// The address of the arena that the view begins with, a multiple of 1 GiB.
    view_of: usize,
    /// What children get instead of what would have been frozen.
    pub(super) copies: Copies,
}

impl<'a> Snapshot<'a> {
    /// Works out what to snapshot and gets ready all that can fail beforehand. Somebody keeps the view, or
    /// it is only where the pages go.
    pub(crate) fn plan(
        shared: &'a Shared,
        mut state: MutexGuard<'a, State>,
        keeps_view: bool,
    ) -> Result<Self> {
        if state.is_empty() {
            return Ok(Self::nothing(shared, state));
        }
        shared.backing_file.check()?;
        thaw::mend(shared, &mut state)?;
        shared.counters.has_userfaultfd.store(u64::from(shared.service(&state).is_some()), Relaxed);
        if state.is_pinned && !keeps_view {
            let copies = Copies::make(shared, &state)
                .map_err(|errno| Error::from_errno(OPERATION, errno).on(shared.range))?;
            let mut snapshot = Self::nothing(shared, state);
            snapshot.copies = copies;
            return Ok(snapshot);
        }
        if keeps_view && state.clean() > 0 {
            thaw::clean::thaw_written(shared, &mut state)
                .and_then(|()| thaw::clean::thaw_short_runs(shared, &mut state))
                .map_err(|errno| Error::from_errno(OPERATION, errno).on(shared.range))?;
        }
        let mut snapshot = Self::nothing(shared, state);
        snapshot.choose(keeps_view)?;
        if keeps_view || !snapshot.pieces.is_empty() {
            snapshot.generation = snapshot.state.generations.begin()?;
            let whole = if keeps_view { shared.range } else { snapshot.moved_range() };
            snapshot.view = memory::reserve(whole.len, GIB_BYTES).during(OPERATION)?;
            snapshot.view_of = whole.start;
        }
        Ok(snapshot)
    }

    /// What is moved, and no more than that: a view that nobody keeps needs no more address space. Pages move as
    /// whole page tables if both places lie alike in 1 GiB.
    fn moved_range(&self) -> VirtRange {
        let start = self.pieces.first().map_or(self.shared.range.start, |(first, _)| first.start);
        let end = self.pieces.last().map_or(start, |(last, _)| last.end());
        VirtRange::between(start - start % GIB_BYTES, end)
    }

    /// Works out what to snapshot: of clean chunks nothing for a fork, whose children read their base as they
    /// read that of frozen ones.
    fn choose(&mut self, keeps_view: bool) -> Result<()> {
        let Self { shared, state, pieces, clean, .. } = self;
        let is_wanted = |chunk| chunk == Chunk::Live || (chunk == Chunk::Clean && keeps_view);
        let mut from = 0;
        while let Some(first) = state.next_run(from, 1, is_wanted) {
            let kind = state.chunk(first.start);
            let run = state.next_run(first.start, usize::MAX, |chunk| chunk == kind);
            let run = run.expect("one chunk at least");
            from = run.end;
            if let Some(range) = used_part(shared, state, run) {
                open_free_space(state, range)?;
                let of_run = state.vma_map.pieces(range);
                if kind == Chunk::Clean {
                    clean.extend(of_run.iter().map(|(piece, _)| *piece));
                }
                pieces.extend(of_run);
            }
        }
        Ok(())
    }

    /// Makes clean chunks live: what a freeze without userfaultfd maps over is live.
    fn thaw_clean(&mut self) -> Result<()> {
        if self.clean.is_empty() {
            return Ok(());
        }
        self.pieces.clear();
        self.clean.clear();
        thaw::clean::thaw_all(self.shared, &mut self.state)
            .map_err(|errno| Error::from_errno(OPERATION, errno).on(self.shared.range))?;
        self.choose(true)
    }

    /// A locked arena of which nothing is to be frozen.
    pub(crate) fn nothing(shared: &'a Shared, state: MutexGuard<'a, State>) -> Self {
        Self {
            shared,
            state,
            pieces: Vec::new(),
            clean: Vec::new(),
            moved_to: 0,
            done: 0,
            generation: 0,
            view: VirtRange::default(),
            view_of: shared.range.start,
            copies: Copies::default(),
        }
    }

    /// Nothing is live that a fork would share.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Of its arena, which is locked.
    pub(super) fn service(&self) -> Option<Arc<Service>> {
        self.shared.service(&self.state)
    }

    fn in_view(&self, piece: VirtRange) -> VirtRange {
        VirtRange::new(self.view.start + (piece.start - self.view_of), piece.len)
    }

    /// The first `done` pieces are private now. If not all are, the chunk at the border is partial.
    fn mark_frozen(&mut self, done: usize) {
        self.done = done;
        let state = &mut *self.state;
        for (piece, _) in &self.pieces[..done] {
            for chunk in self.shared.chunks_of(*piece) {
                state.set_chunk(chunk, Chunk::Frozen);
                state.set_since(chunk, self.generation);
            }
            state.unmapped.add_frozen(*piece);
            let free: Vec<_> = state.vma_map.free_within(*piece).collect();
            for whole in free.into_iter().map(|free| free.inner_aligned(CHUNK_BYTES)) {
                for chunk in self.shared.chunks_of(whole) {
                    state.set_chunk(chunk, Chunk::FreePrivate);
                }
            }
        }
        self.state.thaw.armed = false;
        self.state.thaw.clean_from = 0;
        if let Some((next, _)) = self.pieces.get(done) {
            let border = self.shared.chunks_of(*next).start;
            if self.state.chunk(border) != Chunk::Live {
                self.state.partial_chunks.push(border);
            }
        }
    }

    /// Makes live again what a freeze that failed made private. What cannot be is left to the
    /// service thread.
    fn undo(&mut self) {
        for (piece, _) in &self.pieces[..self.done] {
            for chunk in self.shared.chunks_of(*piece) {
                if at_once(self.shared, &mut self.state, chunk).is_err() {
                    return;
                }
            }
        }
    }

    /// Keeps the view for a reader in this process.
    pub(crate) fn into_view(mut self, method: FreezeMethod) -> Result<VirtRange> {
        self.state.views += 1;
        // If it fails, a fork that goes around us shares what a thaw will change.
        let _ = set_inherited(self.shared, &self.state, Advice::DontFork);
        let mapped: Result<()> = (|| {
            if method == FreezeMethod::WithoutUserfaultfd {
                for (piece, _) in &self.pieces {
                    let place = self.in_view(*piece);
                    let at = offset(self.shared.range, *piece);
                    // SAFETY: see the module.
                    unsafe {
                        memory::map_file(
                            place,
                            self.shared.backing_file.fd(),
                            at,
                            Sharing::Shared,
                            Prot::READ,
                        )
                    }
                    .during("map a view")?;
                }
            }
            // What is allocated later was free at the freeze, and shows zeroes. What was writable stays
            // so: taking that away would walk every entry of the page tables, and nobody is handed
            // more than a shared reference.
            let mut rest = self.view;
            for (piece, prot) in &self.pieces {
                let shown = self.in_view(*piece);
                let gap = VirtRange::between(rest.start, shown.start);
                let guarded = if prot.contains(Prot::READ) { VirtRange::default() } else { shown };
                for part in [gap, guarded].into_iter().filter(|part| !part.is_empty()) {
                    make_readable(part)?;
                }
                rest = VirtRange::between(shown.end(), rest.end());
            }
            if rest.is_empty() { Ok(()) } else { make_readable(rest) }
        })();
        if let Err(error) = mapped {
            self.state.views -= 1;
            if self.discard_view() {
                self.shared.notify(&self.state);
            }
            return Err(error);
        }
        Ok(std::mem::take(&mut self.view))
    }

    /// Gives the view up. Whether there is a part of that to do in the background: a large one's page tables go bit by bit.
    pub(crate) fn discard_view(&mut self) -> bool {
        let view = std::mem::take(&mut self.view);
        if view.is_empty() {
            return false;
        }
        let moved_bytes: usize = self.pieces.iter().map(|(piece, _)| piece.len).sum();
        let is_left = moved_bytes > thaw::VIEW_STEP_BYTES && self.service().is_some();
        if is_left {
            self.state.retired_views.push(view);
        } else {
            // SAFETY: nobody has this view.
            let _ = unsafe { memory::unmap(view) };
        }
        is_left
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        if self.discard_view() {
            self.shared.notify(&self.state);
        }
    }
}

fn make_readable(part_of_view: VirtRange) -> Result<()> {
    // SAFETY: the view was made by this freeze and nobody has it yet.
    unsafe { memory::protect(part_of_view, Prot::READ) }.during("make a view readable")
}

/// From the first to the last chunk of a run that holds used memory.
fn used_part(shared: &Shared, state: &State, run: std::ops::Range<usize>) -> Option<VirtRange> {
    let whole = shared.chunk_range(run.start, run.len());
    let mut used = state.vma_map.within(whole).filter(|span| span.usage == Usage::Used);
    let first = used.next()?;
    let last = used.last().unwrap_or(first);
    Some(VirtRange::between(first.range.start, last.range.end()).outer_aligned(CHUNK_BYTES))
}

/// Gives free space between used memory the protection of its neighbours, so that all of it is one
/// mapping to the kernel, which moves at once. Until it is used again an access to it is not caught.
fn open_free_space(state: &mut State, range: VirtRange) -> Result<()> {
    let closed: Vec<_> = state
        .vma_map
        .within(range)
        .filter(|span| span.usage == Usage::Free && span.prot != Prot::RW)
        .map(|span| span.range)
        .collect();
    for free in closed {
        // SAFETY: see the module; nobody's memory.
        unsafe {
            memory::protect(free, Prot::RW).during(OPERATION)?;
            memory::advise(free, Advice::DoDump).during(OPERATION)?;
        }
        state.vma_map.set(free, Usage::Free, Prot::RW);
    }
    Ok(())
}

/// Freezes all of `snapshots` at one instant.
pub(crate) fn take(snapshots: &mut [Snapshot<'_>]) -> Result<FreezeMethod> {
    let can_move = snapshots.iter().all(|snapshot| {
        snapshot.service().is_some_and(|service| !service.is_blind())
            && snapshot.shared.backing_file.pages != Pages::Hugetlb
            && !process::stands_in(snapshot.shared.range)
    });
    // A handler could touch what waits for this very thread.
    let blocked = can_move.then(BlockedSignals::enter);
    let colocate = can_move.then(|| Colocate::begin(snapshots));
    let began = process::now_ns();
    let without_userfaultfd = |snapshots: &mut [Snapshot<'_>]| {
        snapshots.iter_mut().try_for_each(Snapshot::thaw_clean)?;
        map_over(snapshots).map(|()| FreezeMethod::WithoutUserfaultfd)
    };
    let result = if can_move {
        match move_all(snapshots) {
            Ok(()) => map_all(snapshots).map(|()| FreezeMethod::Userfaultfd),
            Err(error) if error.kind() == ErrorKind::OutOfMemory => Err(error),
            // What was live is so still: the other way may work.
            Err(_) => without_userfaultfd(snapshots),
        }
    } else {
        without_userfaultfd(snapshots)
    };
    let ns = process::now_ns() - began;
    drop(colocate);
    drop(blocked);
    if result.is_err() {
        snapshots.iter_mut().for_each(Snapshot::undo);
    }
    for snapshot in snapshots.iter_mut() {
        let counters = snapshot.shared.counters;
        if result.is_err() {
            counters.failed_freezes.fetch_add(1, Relaxed);
            continue;
        }
        counters.freezes.fetch_add(1, Relaxed);
        counters
            .plain_freezes
            .fetch_add(u64::from(matches!(result, Ok(FreezeMethod::WithoutUserfaultfd))), Relaxed);
        counters.last_freeze_ns.store(ns, Relaxed);
        counters.longest_freeze_ns.fetch_max(ns, Relaxed);
        counters.stalled(ns);
        counters.frozen_chunks.store(snapshot.state.not_live() as u64, Relaxed);
    }
    result
}

/// Moves the pages away, so that every access waits, and has what is under them be their content. If that
/// fails, all is live again.
fn move_all(snapshots: &mut [Snapshot<'_>]) -> Result<()> {
    let moved = try_move(snapshots);
    // For all of them, whatever happened to one.
    let ended = snapshots.iter().filter_map(Snapshot::service);
    let ended = ended.map(|service| service.sight.end_moves()).fold(Ok(()), Result::and);
    let moved = moved.and(ended).and_then(|()| snapshots.iter_mut().try_for_each(clean::settle));
    if moved.is_err() {
        for snapshot in snapshots.iter() {
            let Some(service) = snapshot.service() else { continue };
            clean::move_back(snapshot, &service);
            for (piece, _) in &snapshot.pieces {
                // Not registered is fine; what was moved is a shared mapping again, and live.
                _ = insist(|| service.uffd.unregister(*piece));
                _ = insist(|| service.uffd.wake(*piece));
            }
        }
    }
    moved.map_err(|errno| Error::from_errno(OPERATION, errno).on(snapshots[0].shared.range))
}

fn try_move(snapshots: &mut [Snapshot<'_>]) -> Result<(), Errno> {
    for snapshot in snapshots.iter() {
        let service = snapshot.service().ok_or(Errno::NODEV)?;
        service.begin_moves()?;
        for (piece, _) in &snapshot.pieces {
            service.uffd.register(*piece, RegisterMode::MISSING | RegisterMode::MINOR)?;
        }
    }
    for snapshot in snapshots {
        let mut clean_pieces = snapshot.clean.iter().peekable();
        for (piece, _) in &snapshot.pieces {
            if clean_pieces.next_if_eq(&piece).is_some() {
                let place = snapshot.in_view(*piece);
                clean::move_out(*piece, place, &mut snapshot.moved_to)?;
            } else {
                // SAFETY: see the module.
                unsafe { memory::move_pages_out(*piece, snapshot.in_view(*piece)) }?;
            }
        }
    }
    Ok(())
}

/// Maps everything privately and wakes who waits.
fn map_all(snapshots: &mut [Snapshot<'_>]) -> Result<()> {
    let mapped = try_map(snapshots);
    for snapshot in snapshots.iter() {
        let Some(service) = snapshot.service() else { continue };
        if mapped.is_err() {
            // What was not mapped privately is live again.
            for (piece, _) in &snapshot.pieces {
                _ = insist(|| service.uffd.unregister(*piece));
            }
        }
        _ = insist(|| service.uffd.wake(snapshot.shared.range));
        // The view took the registration along; a reader of it must not wait for anybody.
        for (piece, _) in &snapshot.pieces {
            _ = insist(|| service.uffd.unregister(snapshot.in_view(*piece)));
        }
    }
    mapped.map_err(|errno| Error::from_errno(OPERATION, errno).hint(MAP_HINT))
}

const MAP_HINT: &str = "the kernel refused a private mapping: too many mappings \
    (vm.max_map_count), or vm.overcommit_memory=2 leaves no room for private copies";

fn try_map(snapshots: &mut [Snapshot<'_>]) -> Result<(), Errno> {
    for snapshot in snapshots.iter_mut() {
        let mut done = 0;
        let mapped = snapshot.pieces.iter().try_for_each(|(piece, prot)| {
            let at = offset(snapshot.shared.range, *piece);
            // SAFETY: see the module.
            unsafe {
                memory::map_file(
                    *piece,
                    snapshot.shared.backing_file.fd(),
                    at,
                    Sharing::Private,
                    *prot,
                )
            }?;
            done += 1;
            Ok(())
        });
        snapshot.mark_frozen(done);
        mapped?;
    }
    Ok(())
}

/// Freezes without userfaultfd: one mapping over the other, for each piece. They are made elsewhere first: what the kernel or the
/// hugetlb pool, which pays for every copy beforehand, has to refuse it refuses before anything changes.
fn map_over(snapshots: &mut [Snapshot<'_>]) -> Result<()> {
    let mut ready = Vec::new();
    for snapshot in snapshots.iter() {
        for (piece, prot) in &snapshot.pieces {
            match private_elsewhere(snapshot, *piece, *prot) {
                Ok(place) => ready.push(place),
                Err(errno) => {
                    let hint = match snapshot.shared.backing_file.pages {
                        Pages::Hugetlb => POOL_HINT,
                        _ => MAP_HINT,
                    };
                    give_up(ready);
                    return Err(Error::from_errno(OPERATION, errno).on(*piece).hint(hint));
                }
            }
        }
    }
    let mut ready = ready.into_iter();
    for snapshot in snapshots.iter_mut() {
        let mut done = 0;
        let moved = snapshot.pieces.iter().try_for_each(|(piece, _)| {
            let place = ready.as_slice()[0];
            // SAFETY: see the module.
            unsafe { memory::move_mapping(place, *piece) }?;
            ready.next();
            done += 1;
            Ok(())
        });
        snapshot.mark_frozen(done);
        if let Err(errno) = moved {
            give_up(ready);
            return Err(Error::from_errno(OPERATION, errno).hint(MAP_HINT));
        }
    }
    Ok(())
}

fn give_up(places: impl IntoIterator<Item = VirtRange>) {
    for place in places {
        // SAFETY: made for a freeze that failed, and known to nobody else.
        let _ = unsafe { memory::unmap(place) };
    }
}

/// A private mapping of a piece, elsewhere. For hugetlb the pool has set pages aside for its copies.
fn private_elsewhere(
    snapshot: &Snapshot<'_>,
    piece: VirtRange,
    prot: Prot,
) -> Result<VirtRange, Errno> {
    let at = offset(snapshot.shared.range, piece);
    let file = snapshot.shared.backing_file.fd();
    let is_hugetlb = snapshot.shared.backing_file.pages == Pages::Hugetlb;
    let place = if is_hugetlb {
        memory::map_file_reserved(piece.len, file, at, Sharing::Private)?
    } else {
        memory::reserve(piece.len, page_size_bytes())?
    };
    // SAFETY: the place was made just now, for this alone.
    let made = unsafe {
        if is_hugetlb {
            memory::protect(place, prot)
        } else {
            memory::map_file(place, file, at, Sharing::Private, prot)
        }
    };
    made.inspect_err(|_| give_up([place])).map(|()| place)
}

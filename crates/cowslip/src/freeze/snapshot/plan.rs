//! The parts of an arena that a freeze makes private, chosen while it is locked.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

use cowslip_sys::Errno;
use cowslip_sys::error::{During, Error, Result};
use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::units::{CHUNK_BYTES, GIB_BYTES, VirtRange, page_size_bytes};

use crate::arena::chunk::at_once;
use crate::arena::state::{Chunk, Event, Shared, State};
use crate::freeze::pinned::Copies;
use crate::mapping::backing_file::{CLOSED, Pages};
use crate::mapping::{OwnSpace, OwnedRange};
use crate::memory::vma_map::Usage;
use crate::service::Service;
use crate::thaw;

pub(super) const OPERATION: &str = "freeze";

/// The kernel's refusal of a private mapping.
pub(in crate::freeze) fn not_mapped(errno: Errno) -> Error {
    Error::from_errno(OPERATION, errno)
        .because("there are too many mappings, or vm.overcommit_memory=2 leaves no room for private copies")
        .advise("raise vm.max_map_count, or set vm.overcommit_memory=0")
}

/// One arena of a freeze, locked.
pub(crate) struct Snapshot<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) state: MutexGuard<'a, State>,
    /// Mappings to make private: each of one protection, in chunks that hold used memory: live or clean ones, and for a view
    /// frozen ones.
    pub(super) pieces: Vec<(VirtRange, Prot)>,
    /// Pieces that are private already: their private pages move along.
    pub(super) private: Vec<VirtRange>,
    /// Frozen chunks that will map another file, in order, with its number.
    pub(super) moved: Vec<(usize, u8)>,
    /// Frozen chunks that map another file by now.
    pub(super) copied: Vec<usize>,
    /// Private pieces were moved up to here.
    pub(super) moved_to: usize,
    /// The number of pieces that are private now.
    pub(super) done: usize,
    /// The generation of this freeze.
    pub(super) generation: u64,
    pub(super) view: OwnSpace,
    /// The address of the arena that the view begins with, a multiple of 1 GiB.
    pub(super) view_of: usize,
    /// Copies that children get instead of memory that would have been frozen.
    pub(in crate::freeze) copies: Copies,
}

impl<'a> Snapshot<'a> {
    /// Chooses the pieces to snapshot and prepares all that can fail beforehand. Unless the view is kept, it is only
    /// the place that the pages go to.
    pub(crate) fn plan(
        shared: &'a Shared,
        mut state: MutexGuard<'a, State>,
        keeps_view: bool,
    ) -> Result<Self> {
        if state.is_empty() {
            return Ok(Self::nothing(shared, state));
        }
        state.files.check_identities().map_err(|errno| {
            Error::from_errno("find the arena's files behind their descriptors", errno)
                .because(CLOSED)
        })?;
        thaw::complete_partial(shared, &mut state)?;
        shared.counters.has_userfaultfd.store(u64::from(shared.service(&state).is_some()), Relaxed);
        if state.is_pinned && !keeps_view {
            let copies = Copies::make(shared, &state)
                .map_err(|errno| Error::from_errno(OPERATION, errno).on(shared.range))?;
            let mut snapshot = Self::nothing(shared, state);
            snapshot.copies = copies;
            return Ok(snapshot);
        }
        if keeps_view && state.map.count(Chunk::Clean) > 0 {
            thaw::clean::thaw_written(shared, &mut state)
                .and_then(|()| thaw::clean::thaw_short_runs(shared, &mut state))
                .map_err(|errno| Error::from_errno(OPERATION, errno).on(shared.range))?;
        }
        let mut snapshot = Self::nothing(shared, state);
        snapshot.choose(keeps_view)?;
        if keeps_view || !snapshot.pieces.is_empty() {
            let generations = &mut snapshot.state.generations;
            snapshot.generation =
                if keeps_view { generations.begin_anew() } else { generations.begin() }?;
            let whole = if keeps_view { shared.range } else { snapshot.moved_range() };
            snapshot.view = OwnSpace::reserve_apart(whole.len, GIB_BYTES).during(OPERATION)?;
            snapshot.view_of = whole.start;
        }
        Ok(snapshot)
    }

    /// The range that moves, and no more than that: a view that is not kept needs no more address space. Pages move as
    /// whole page tables if both places lie alike in 1 GiB.
    fn moved_range(&self) -> VirtRange {
        let start = self.pieces.first().map_or(self.shared.range.start, |(first, _)| first.start);
        let end = self.pieces.last().map_or(start, |(last, _)| last.end());
        VirtRange::between(start - start % GIB_BYTES, end)
    }

    /// True if this freeze mapped all private memory anew: children inherit it, without more.
    pub(in crate::freeze) fn has_mapped_all(&self) -> bool {
        let map = &self.state.map;
        let mut private = map.runs(Chunk::is_private).flatten();
        private.all(|chunk| map.since(chunk) == self.generation)
    }

    /// Chooses the pieces to snapshot. For a fork, none are in private chunks: children read the parent's mappings of
    /// these.
    fn choose(&mut self, keeps_view: bool) -> Result<()> {
        let Self { shared, state, pieces, private, .. } = self;
        let is_wanted = |chunk| match chunk {
            Chunk::Live => true,
            Chunk::Clean | Chunk::Frozen => keeps_view,
            _ => false,
        };
        let mut from = 0;
        while let Some(first) = state.map.next_run(from, 1, is_wanted) {
            let kind = state.chunk(first.start);
            let run = state.map.next_run(first.start, usize::MAX, |chunk| chunk == kind);
            let run = run.expect("one chunk at least");
            from = run.end;
            if let Some(range) = used_part(shared, state, run) {
                open_free_space(shared, state, range)?;
                let of_run = state.pieces(range);
                if kind != Chunk::Live {
                    private.extend(of_run.iter().map(|(piece, _)| *piece));
                }
                pieces.extend(of_run);
            }
        }
        Ok(())
    }

    /// Makes clean chunks live: a freeze without userfaultfd maps over live memory only.
    pub(super) fn thaw_clean(&mut self) -> Result<()> {
        if self.private.is_empty() {
            return Ok(());
        }
        self.pieces.clear();
        self.private.clear();
        thaw::clean::thaw_all(self.shared, &mut self.state)
            .map_err(|errno| Error::from_errno(OPERATION, errno).on(self.shared.range))?;
        self.choose(true)
    }

    /// A locked arena without pieces to freeze.
    pub(crate) fn nothing(shared: &'a Shared, state: MutexGuard<'a, State>) -> Self {
        Self {
            shared,
            state,
            pieces: Vec::new(),
            private: Vec::new(),
            moved: Vec::new(),
            copied: Vec::new(),
            moved_to: 0,
            done: 0,
            generation: 0,
            view: OwnSpace::default(),
            view_of: shared.range.start,
            copies: Copies::default(),
        }
    }

    /// True if there is no live memory that a fork would share.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Makes a core dump include the memory that was made private. The kernel dumps a private mapping of a file if it
    /// has a private page, and then all of it (`core(5)`): one page of each mapping is copied, here and for the child.
    pub(in crate::freeze) fn have_dumped(&self) {
        if self.shared.pages == Pages::Hugetlb {
            return;
        }
        for (piece, _) in
            self.pieces[..self.done].iter().filter(|(_, prot)| prot.contains(Prot::RW))
        {
            let mut used = self.state.vma_map.within(*piece);
            if let Some(used) = used.find(|span| span.usage == Usage::Used) {
                let page = VirtRange::new(used.range.start, page_size_bytes());
                // If it fails, a dump lacks the mapping.
                let _ = self.shared.piece(page).advise(Advice::PopulateWrite);
            }
        }
    }

    /// The generation that this freeze makes.
    pub(in crate::freeze) fn generation(&self) -> u64 {
        self.generation
    }

    /// The service of its arena, which is locked.
    pub(in crate::freeze) fn service(&self) -> Option<Arc<Service>> {
        self.shared.service(&self.state)
    }

    pub(super) fn in_view(&self, piece: VirtRange) -> OwnedRange {
        let start = self.view.start + (piece.start - self.view_of);
        self.view.part(VirtRange::new(start, piece.len))
    }

    /// True if chunks are frozen for readers of earlier freezes.
    pub(super) fn has_frozen(&self) -> bool {
        self.state.map.count(Chunk::Frozen) > 0 && !self.private.is_empty()
    }

    /// Makes each chunk that will map another file a piece.
    pub(super) fn part_moved(&mut self) {
        for (chunk, _) in &self.moved {
            let range = self.shared.chunk_range(*chunk, 1);
            let place = self.pieces.partition_point(|(piece, _)| piece.end() <= range.start);
            let (piece, prot) = self.pieces[place];
            let parts = [
                VirtRange::between(piece.start, range.start),
                range,
                VirtRange::between(range.end(), piece.end()),
            ];
            let parts = parts.into_iter().filter(|part| !part.is_empty());
            self.pieces.splice(place..=place, parts.map(|part| (part, prot)));
        }
    }

    /// True if a piece was private before.
    pub(super) fn is_private(&self, piece: VirtRange) -> bool {
        let place = self.private.partition_point(|range| range.end() <= piece.start);
        self.private.get(place).is_some_and(|range| range.covers(piece))
    }

    /// Number of the file that a piece maps when it is private.
    pub(super) fn file_of(&self, piece: VirtRange) -> u8 {
        let chunk = self.shared.chunks_of(piece).start;
        let moved = self.moved.iter().find(|(moved, _)| *moved == chunk);
        moved.map_or_else(|| self.state.map.file(chunk), |(_, file)| *file)
    }

    /// Notes that the first `done` pieces are private now. If not all are, the chunk at the border is partial.
    pub(super) fn mark_frozen(&mut self, done: usize) {
        self.done = done;
        let state = &mut *self.state;
        for (chunk, file) in self.moved.drain(..) {
            let start = self.shared.chunk_range(chunk, 1).start;
            if self.pieces[..done].last().is_some_and(|(last, _)| last.start >= start) {
                self.shared.vacate(state, chunk, file);
                state.map.set_since(chunk, self.generation);
                self.copied.push(chunk);
            } else {
                state.files.abandon(file, chunk);
            }
        }
        for (piece, _) in &self.pieces[..done] {
            for chunk in self.shared.chunks_of(*piece) {
                // Several pieces may meet in a chunk.
                if !state.chunk(chunk).is_private() {
                    let is_unused = state.vma_map.is_unused(self.shared.chunk_range(chunk, 1));
                    let event = if is_unused { Event::FreezeFree } else { Event::Freeze };
                    state.change(chunk, event);
                    state.map.set_since(chunk, self.generation);
                }
            }
            state.unmapped.add(*piece);
            state.plan.residency.freeze();
            self.shared
                .chunks_of(*piece)
                .for_each(|chunk| state.map.set_mapped_singly(chunk, false));
        }
        state.files.forget_target();
        state.plan.freeze();
        if let Some((next, _)) = self.pieces.get(done) {
            let border = self.shared.chunks_of(*next).start;
            let is_whole = match self.state.chunk(border) {
                Chunk::Live => true,
                Chunk::Frozen => !self.is_of_this(border),
                _ => false,
            };
            if !is_whole {
                self.state.change(border, Event::Break);
            }
        }
    }

    /// True if a chunk was frozen, or changed its file, in this freeze.
    fn is_of_this(&self, chunk: usize) -> bool {
        self.state.map.since(chunk) == self.generation
    }

    /// Makes pieces live again that a failed freeze made private. The service thread does the rest.
    pub(super) fn undo(&mut self) {
        for (chunk, file) in self.moved.drain(..) {
            self.state.files.abandon(file, chunk);
        }
        // It has places to give back now.
        self.state.files.forget_target();
        for (piece, _) in &self.pieces[..self.done] {
            for chunk in self.shared.chunks_of(*piece) {
                // Chunks frozen before stay so, for their readers.
                if self.is_of_this(chunk) && at_once(self.shared, &mut self.state, chunk).is_err() {
                    return;
                }
            }
        }
    }
}

/// The range from the first to the last chunk of a run that holds used memory.
fn used_part(shared: &Shared, state: &State, run: std::ops::Range<usize>) -> Option<VirtRange> {
    let whole = shared.chunk_range(run.start, run.len());
    let mut used = state.vma_map.within(whole).filter(|span| span.usage == Usage::Used);
    let first = used.next()?;
    let last = used.last().unwrap_or(first);
    Some(VirtRange::between(first.range.start, last.range.end()).outer_aligned(CHUNK_BYTES))
}

/// Gives free space between used memory the protection of its neighbours, so that all of it is one
/// mapping to the kernel, which moves at once. Until it is used again an access to it is not caught.
fn open_free_space(shared: &Shared, state: &mut State, range: VirtRange) -> Result<()> {
    let closed: Vec<_> = state
        .vma_map
        .within(range)
        .filter(|span| span.usage == Usage::Free && span.prot != Prot::RW)
        .map(|span| span.range)
        .collect();
    for free in closed {
        let piece = shared.piece(free);
        piece.protect(Prot::RW).during(OPERATION)?;
        piece.advise(Advice::DoDump).during(OPERATION)?;
        state.vma_map.set(free, Usage::Free, Prot::RW);
    }
    Ok(())
}

//! Handing out the arena's memory and taking it back, in every state.
//!
//! The rules that keep private memory private (I5):
//! * Memory is handed out as zeroes. Free space may hold old content; it is cleaned when it is handed out, whole chunks
//!   by punching a hole, parts of chunks by overwriting, so that a huge page is not split for them ([`super::trim`]
//!   gives such parts back when they are many). Only an image's content is handed out as it is.
//! * While a chunk is frozen nothing is handed out of it, since its base belongs to its readers.
//! * A clean chunk has no readers. It is made live before anything is handed out of it.
//! * "Give it back and read zeroes" (`MADV_DONTNEED`) acts on the file while live, on private copies
//!   while frozen: never on the base.

use std::iter;
use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes, round_up};
use cowslip_sys::{Errno, memfile};

use super::chunk::{at_once, contains_current_stack, halves};
use super::deferred_free;
use super::state::{Chunk, Event, Role, Shared, State};
use crate::mapping::backing_file::{BackingFile, Pages, offset, pool_too_small};
use crate::memory::density::PageSet;
use crate::memory::departure::Departure;
use crate::memory::vma_map::Usage;
use crate::plan::settings::freeze::{MANY_SPANS, MANY_SPANS_IN_ALL, SPANS_WORTH_A_PAGE_TABLE};

const ALLOCATE: &str = "allocate from an arena";
const DISCARD: &str = "discard memory of an arena";
const RELEASE: &str = "give memory back to an arena";

impl Shared {
    /// The unit, in bytes, in which memory is handed out and mapped.
    pub(crate) fn unit(&self) -> usize {
        if self.pages == Pages::Hugetlb { CHUNK_BYTES } else { page_size_bytes() }
    }

    /// Hands out `len` bytes of zeroed memory, aligned to 2 MiB from that size on.
    pub(crate) fn allocate(&self, state: &mut State, len: usize, prot: Prot) -> Result<VirtRange> {
        if state.role == Role::Reader {
            return Err(Error::new(ErrorKind::Busy, ALLOCATE)
                .because("a forked child reads its parent's arena")
                .advise("take new memory elsewhere"));
        }
        deferred_free::reclaim(self, state);
        let full = || {
            Error::new(ErrorKind::OutOfMemory, ALLOCATE)
                .because("the arena is full")
                .advise("give it more capacity")
        };
        let len = round_up(len.max(1), self.unit()).ok_or_else(full)?;
        let align = if len >= CHUNK_BYTES { CHUNK_BYTES } else { self.unit() };
        if state.is_closed {
            return Err(full());
        }
        loop {
            let range = state
                .vma_map
                .find_free(len, align, |free| {
                    self.usable_parts(state, free, len.saturating_add(align))
                })
                .ok_or_else(full)?;
            if self.claim(state, range, prot)? {
                return self.hand_out(state, range, prot).map(|()| range);
            }
        }
    }

    /// Hands out exactly `range`; `false` if it is not free, or free space there cannot be used now.
    pub(crate) fn allocate_at(
        &self,
        state: &mut State,
        range: VirtRange,
        prot: Prot,
    ) -> Result<bool> {
        let is_free = self.is_free(state, range) && self.claim(state, range, prot)?;
        if is_free {
            self.hand_out(state, range, prot)?;
        }
        Ok(is_free)
    }

    /// Like [`Self::allocate_at`], with the content that the file has there, now or soon.
    pub(crate) fn allocate_filled(
        &self,
        state: &mut State,
        range: VirtRange,
        prot: Prot,
    ) -> Result<bool> {
        let is_free = self.is_free(state, range) && self.claim(state, range, prot)?;
        if is_free {
            self.give(state, range, prot)?;
        }
        Ok(is_free)
    }

    fn is_free(&self, state: &State, range: VirtRange) -> bool {
        state.role == Role::Owner
            && !state.is_closed
            && self.pages != Pages::Hugetlb
            && self.range.covers(range)
            && state.vma_map.is_vacant(range)
            && self.usable_parts(state, range, usize::MAX).eq([range])
    }

    /// Maps the holes of `range`, with the protection that they are about to have. `false` if something else is mapped in
    /// one of them: that no longer belongs to the arena, and the others stay holes. A closed arena drops its holes, and
    /// so does a reader: their memory would be its parent's.
    pub(crate) fn claim(&self, state: &mut State, range: VirtRange, prot: Prot) -> Result<bool> {
        let holes = state.vma_map.holes(range);
        for (i, hole) in holes.iter().enumerate() {
            if state.is_closed || state.role == Role::Reader {
                state.vma_map.set(*hole, Usage::Foreign, Prot::NONE);
                continue;
            }
            let claimed = self.claim_hole(state, *hole, prot).during(ALLOCATE);
            if !matches!(claimed, Ok(true)) {
                // The program unmapped them: an access must fail.
                holes[..=i].iter().try_for_each(|hole| self.unmap_free(state, *hole))?;
                return claimed;
            }
        }
        Ok(true)
    }

    /// Makes the free parts of `range` holes.
    pub(crate) fn unmap_free(&self, state: &mut State, range: VirtRange) -> Result<()> {
        for free in state.vma_map.free_within(range).collect::<Vec<_>>() {
            self.piece(free).unmap().during(RELEASE)?;
            state.vma_map.set(free, Usage::Hole, Prot::NONE);
        }
        Ok(())
    }

    fn claim_hole(&self, state: &mut State, hole: VirtRange, prot: Prot) -> Result<bool, Errno> {
        let parts: Vec<_> = state.by_file(hole).collect();
        if parts.len() > 1 {
            let mut is_whole = true;
            for part in parts {
                is_whole &= self.claim_hole(state, part, prot)?;
            }
            return Ok(is_whole);
        }
        match state.file_at(hole.start).map_in_hole(self.piece(hole), prot) {
            Ok(()) => {
                state.vma_map.set(hole, Usage::Free, prot);
                let pieces = state.pieces(hole);
                pieces.iter().for_each(|(piece, _)| self.mark_base(state, *piece));
                Ok(true)
            }
            // The rest is useful without the occupied part.
            Err(Errno::EXIST) if hole.len > CHUNK_BYTES => {
                let (left, right) = halves(hole);
                let is_whole = self.claim_hole(state, left, prot)?;
                Ok(self.claim_hole(state, right, prot)? && is_whole)
            }
            Err(Errno::EXIST) => {
                state.vma_map.set(hole, Usage::Foreign, Prot::NONE);
                Ok(false)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Hands out free space that can be used now. If that fails it cannot be accessed.
    fn hand_out(&self, state: &mut State, range: VirtRange, prot: Prot) -> Result<()> {
        let prepared = self.prepare(state, range);
        if prepared.is_err() {
            self.shut(state, range);
        }
        prepared.and_then(|()| self.give(state, range, prot))
    }

    /// Takes the protection of [claimed](Self::claim) space back.
    fn shut(&self, state: &mut State, range: VirtRange) {
        for free in state.vma_map.free_within(range).collect::<Vec<_>>() {
            if self.piece(free).protect(Prot::NONE).is_ok() {
                state.vma_map.set(free, Usage::Free, Prot::NONE);
            }
        }
    }

    /// Makes free space ready to be handed out: in a file that may be written, and zero.
    fn prepare(&self, state: &mut State, range: VirtRange) -> Result<()> {
        self.place_new(state, range).during(ALLOCATE)?;
        for chunk in self.chunks_of(range) {
            if state.chunk(chunk) == Chunk::Clean {
                at_once(self, state, chunk).during(ALLOCATE)?;
            }
        }
        self.clean(state, range).during(ALLOCATE)?;
        if self.pages == Pages::Hugetlb {
            let file = state.file_at(range.start).fd();
            memfile::allocate(file, offset(self.range, range), range.len as u64)
                .during(ALLOCATE)
                .map_err(pool_too_small)?;
        }
        self.trust(state, range);
        Ok(())
    }

    /// Hands out free space with whatever content it has.
    fn give(&self, state: &mut State, range: VirtRange, prot: Prot) -> Result<()> {
        // Holes were mapped with it just now. The arena's first mapping has no access, and is not dumped.
        let is_mapped_so =
            prot != Prot::NONE && state.vma_map.within(range).all(|span| span.prot == prot);
        if !is_mapped_so {
            let piece = self.piece(range);
            let opened = piece.protect(prot).and_then(|()| piece.advise(Advice::DoDump));
            if opened.is_err() {
                self.shut(state, range);
            }
            opened.during(ALLOCATE)?;
        }
        state.vma_map.set(range, Usage::Used, prot);
        self.count_used(state);
        Ok(())
    }

    /// The parts of `free` that can be handed out now. A part ends once it has `enough` bytes: a search walks no further.
    fn usable_parts<'a>(
        &'a self,
        state: &'a State,
        free: VirtRange,
        enough: usize,
    ) -> impl Iterator<Item = VirtRange> + 'a {
        let others = [Chunk::Missing, Chunk::Poisoned, Chunk::Clean];
        let others: usize = others.iter().map(|chunk| state.map.count(*chunk)).sum();
        let are_all_live = state.not_live() + others == 0;
        let mut whole = (are_all_live && !state.files.has_exposed()).then_some(free);
        let mut parts = whole.is_none().then(|| self.by_chunk(free).peekable());
        iter::from_fn(move || {
            let Some(parts) = &mut parts else { return whole.take() };
            let (_, mut part) = parts.find(|(chunk, _)| self.is_usable(state, *chunk))?;
            while part.len < enough
                && let Some((_, next)) = parts.next_if(|(chunk, _)| self.is_usable(state, *chunk))
            {
                part.len += next.len;
            }
            Some(part)
        })
    }

    /// True if free space of a chunk can be handed out now.
    fn is_usable(&self, state: &State, chunk: usize) -> bool {
        match state.chunk(chunk) {
            // Beside memory that left it could not move to another file.
            Chunk::Live => {
                let is_exposed = state.files.get(state.map.file(chunk)).is_exposed();
                !is_exposed || state.vma_map.is_unused(self.chunk_range(chunk, 1))
            }
            // It is thawed first.
            Chunk::Clean => !self.must_stay_clean(state, chunk),
            // A view also shows the base of free private chunks. Those of hugetlb have no other file.
            Chunk::FreePrivate => {
                self.pages != Pages::Hugetlb || state.generations.view_count() == 0
            }
            Chunk::Frozen
            | Chunk::Anonymous
            | Chunk::Borrowed
            | Chunk::Partial
            | Chunk::Missing
            | Chunk::Poisoned => false,
        }
    }

    /// True if a clean chunk cannot be thawed now.
    fn must_stay_clean(&self, state: &State, chunk: usize) -> bool {
        state.must_keep_frames() || contains_current_stack(self.chunk_range(chunk, 1))
    }

    /// Makes live space read as zeroes.
    pub(super) fn clean(&self, state: &State, range: VirtRange) -> Result<(), Errno> {
        state.by_file(range).try_for_each(|part| self.clean_in(state.file_at(part.start), part))
    }

    fn clean_in(&self, file: &BackingFile, range: VirtRange) -> Result<(), Errno> {
        file.check_identity()?;
        let file = file.fd();
        let start = offset(self.range, range);
        if memfile::data_at_or_after(file, start, start + range.len as u64)?.is_none() {
            return Ok(());
        }
        let whole = range.inner_aligned(CHUNK_BYTES);
        if !whole.is_empty() {
            memfile::punch_hole(file, offset(self.range, whole), whole.len as u64)?;
        }
        for (_, part) in self.by_chunk(range).filter(|(_, part)| part.len < CHUNK_BYTES) {
            let (mut at, end) =
                (offset(self.range, part), offset(self.range, part) + part.len as u64);
            while let Some((from, to)) = memfile::next_data(file, at, end)? {
                memfile::write_zeroes(file, from, to - from)?;
                at = to;
            }
        }
        Ok(())
    }

    /// `range` cut at the borders of chunks, but not between two that are live: each part with its first chunk.
    fn by_chunk_or_live_run(&self, state: &State, range: VirtRange) -> Vec<(usize, VirtRange)> {
        let is_live = |chunk| state.chunk(chunk) == Chunk::Live;
        let mut parts: Vec<(usize, VirtRange)> = Vec::new();
        for (i, part) in self.by_chunk(range) {
            match parts.last_mut() {
                Some((first, last)) if is_live(*first) && is_live(i) => last.len += part.len,
                _ => parts.push((i, part)),
            }
        }
        parts
    }

    /// Takes memory back. Its place stays mapped by the arena, so that a freeze has few mappings. A later touch of it
    /// may go unnoticed.
    pub(crate) fn release(&self, state: &mut State, range: VirtRange) -> Result<()> {
        self.take_back(state, range, Usage::Free)
    }

    /// Unmaps memory (`munmap`): touching it has the same effect as anywhere where nothing is mapped.
    pub(crate) fn unmap(&self, state: &mut State, range: VirtRange) -> Result<()> {
        self.take_back(state, range, Usage::Hole)?;
        if state.role == Role::Owner {
            self.shed_fragments(state, range);
        }
        Ok(())
    }

    /// Makes the memory of `range` that was handed out `vacant`.
    fn take_back(&self, state: &mut State, range: VirtRange, vacant: Usage) -> Result<()> {
        for span in state.vma_map.within(range).collect::<Vec<_>>() {
            match (span.usage, state.role) {
                (Usage::Free, _) => {}
                (Usage::Used, Role::Owner) => self.take_back_used(state, span.range, vacant)?,
                (Usage::Foreign | Usage::Hole | Usage::Detached | Usage::Left, _)
                | (Usage::Used, Role::Reader) => {
                    // A mapping that others make there later stays theirs.
                    self.piece(span.range).unmap().during(RELEASE)?;
                    state.vma_map.vacate(span.range);
                }
            }
        }
        self.end_borrowing(state);
        self.count_used(state);
        Ok(())
    }

    fn take_back_used(&self, state: &mut State, range: VirtRange, vacant: Usage) -> Result<()> {
        let piece = self.piece(range);
        let taken = match vacant {
            Usage::Hole => piece.unmap(),
            _ => piece.protect(Prot::NONE),
        };
        taken.during(RELEASE)?;
        state.vma_map.set(range, vacant, Prot::NONE);
        for (i, part) in self.by_chunk_or_live_run(state, range) {
            match state.chunk(i) {
                Chunk::Live => self.release_live(state, part),
                Chunk::Poisoned if part.len == CHUNK_BYTES => {
                    self.revive(state, i).during(RELEASE)?
                }
                Chunk::Clean if part.len == CHUNK_BYTES => {
                    // A failure is harmless, as with live memory.
                    let _ = self.revive(state, i);
                }
                Chunk::FreePrivate | Chunk::Missing | Chunk::Poisoned => {}
                Chunk::Frozen
                | Chunk::Anonymous
                | Chunk::Clean
                | Chunk::Borrowed
                | Chunk::Partial => {
                    if vacant == Usage::Free {
                        // This drops private copies only.
                        let _ = self.piece(part).advise(Advice::DontNeed);
                    }
                    if state.vma_map.is_vacant(self.chunk_range(i, 1)) {
                        state.deferred_free.add(i);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes memory read as zeroes and gives its pages back (`MADV_DONTNEED`); for huge pages, see [`super::trim`].
    pub(crate) fn discard(&self, state: &mut State, range: VirtRange) -> Result<()> {
        for span in state.vma_map.within(range).collect::<Vec<_>>() {
            match (span.usage, state.role) {
                (Usage::Free | Usage::Hole, _) => {}
                (Usage::Used, Role::Owner) => self.discard_used(state, span.range)?,
                (Usage::Used, Role::Reader) if self.puts_zero_pages(state, span.range) => {}
                (Usage::Left, _) | (Usage::Used, Role::Reader) => {
                    let piece = self.piece(span.range);
                    // First: the kernel refuses to drop locked memory. The base stays for its other readers.
                    piece.advise(Advice::DontNeed).during(DISCARD)?;
                    piece.map_anonymous(span.prot).during(DISCARD)?;
                    self.keep_wiped(state, span.range);
                    // It no longer belongs to the file, whichever process will own that.
                    self.set_detached(state, span.range, span.prot);
                    self.end_borrowing(state);
                }
                (Usage::Foreign | Usage::Detached, _) => {
                    self.piece(span.range).advise(Advice::DontNeed).during(DISCARD)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a part of a chunk that this process reads of its parent's read as zeroes. True if that was possible within
    /// its mapping. It is not tried where the parent froze without userfaultfd, which may be forbidden.
    fn puts_zero_pages(&self, state: &mut State, range: VirtRange) -> bool {
        let is_frozen =
            |chunk: usize| matches!(state.chunk(chunk), Chunk::Frozen | Chunk::Borrowed);
        range.len < CHUNK_BYTES
            && self.pages != Pages::Hugetlb
            && self.counters.has_userfaultfd.load(Relaxed) != 0
            && self.chunks_of(range).all(is_frozen)
            && self.by_chunk(range).all(|(chunk, part)| {
                let mut zero_pages = std::mem::take(&mut state.zero_pages);
                let whole = || self.mapping_in_file(state, chunk, part);
                let put = zero_pages.put(*self.piece(part), whole);
                state.zero_pages = zero_pages;
                put.is_ok()
            })
    }

    /// The mapping of a frozen chunk that `part` lies in, if all of its pages are in the file. They stay there while this
    /// process reads them. `None` in a reader that renounced the file.
    fn mapping_in_file(&self, state: &State, chunk: usize, part: VirtRange) -> Option<VirtRange> {
        if state.chunk(chunk) != Chunk::Frozen || state.files.are_renounced() {
            return None;
        }
        let pieces = state.pieces(self.chunk_range(chunk, 1));
        let (piece, _) = pieces.into_iter().find(|(piece, _)| piece.covers(part))?;
        let from = offset(self.range, piece);
        let end = from + piece.len as u64;
        let data = memfile::next_data(state.file_at(piece.start).fd(), from, end).ok()?;
        (data == Some((from, end))).then_some(piece)
    }

    fn discard_used(&self, state: &mut State, range: VirtRange) -> Result<()> {
        if self.pages == Pages::Hugetlb {
            // hugetlbfs has no write(2), and a page given back to the pool may be taken when it is needed again, which
            // kills the program.
            return self.zero_in_place(state, range);
        }
        for (i, part) in self.by_chunk_or_live_run(state, range) {
            match state.chunk(i) {
                Chunk::Live => self.discard_live(state, part).during(DISCARD)?,
                Chunk::Anonymous => {
                    self.piece(part).advise(Advice::DontNeed).during(DISCARD)?;
                }
                Chunk::Frozen if part.len == CHUNK_BYTES => {
                    // The base stays as it is for its readers.
                    for (piece, prot) in state.pieces(part) {
                        self.piece(piece).map_anonymous(prot).during(DISCARD)?;
                    }
                    state.change(i, Event::Drop);
                }
                Chunk::Poisoned | Chunk::Clean | Chunk::Borrowed if part.len == CHUNK_BYTES => {
                    self.revive(state, i).during(DISCARD)?;
                }
                Chunk::Frozen | Chunk::Borrowed | Chunk::Partial => {
                    self.zero_frozen(state, part)?;
                }
                Chunk::Clean if self.must_stay_clean(state, i) => self.zero_frozen(state, part)?,
                Chunk::Clean => {
                    at_once(self, state, i).during(DISCARD)?;
                    self.discard_part(state, i, part).during(DISCARD)?;
                }
                Chunk::Poisoned => return Err(lost(DISCARD, part)),
                // No memory handed out lies in a free private chunk, and callers wait until the rest is restored.
                Chunk::FreePrivate | Chunk::Missing => {}
            }
        }
        Ok(())
    }

    /// Makes a chunk with useless content live again, all zeroes.
    pub(crate) fn revive(&self, state: &mut State, chunk: usize) -> Result<(), Errno> {
        let range = self.chunk_range(chunk, 1);
        state.tracking.forget(chunk);
        if let Some(base) = &state.borrowed_base {
            base.forget_filled();
        }
        if let Some(target) = self.other_file(state, chunk)? {
            self.vacate(state, chunk, target);
        }
        self.clean(state, range)?;
        state.density.forget(chunk);
        // A borrowed chunk is one piece: parts that are live already would be filled again after an error.
        for (piece, prot) in state.pieces(range) {
            self.map_live(state, piece, prot)?;
        }
        state.change(chunk, Event::Revive);
        self.end_borrowing(state);
        self.count_restored(state);
        self.wake_if_live(state);
        Ok(())
    }

    /// Wakes the threads that wait for all memory to be live, if it is.
    pub(crate) fn wake_if_live(&self, state: &State) {
        if state.not_live() == 0 {
            self.changed.notify_all();
        }
    }

    /// Makes a part of a frozen chunk read as zeroes. Its pages are given back when it is live.
    fn zero_frozen(&self, state: &mut State, part: VirtRange) -> Result<()> {
        for (i, part) in self.by_chunk(part) {
            let _ = state.density.keep(i, PageSet::from_part(self.chunk_range(i, 1).start, part));
        }
        for (piece, prot) in state.pieces(part) {
            if prot.contains(Prot::RW) {
                self.zero_in_place(state, piece)?;
                continue;
            }
            // Memory that may not be written cannot be overwritten unnoticed: it leaves the arena, and its base stays
            // as it is for its readers.
            self.piece(piece).map_anonymous(prot).during(DISCARD)?;
            self.set_detached(state, piece, prot);
        }
        Ok(())
    }

    /// Changes the protection of memory that is handed out.
    pub(crate) fn protect(&self, state: &mut State, range: VirtRange, prot: Prot) -> Result<()> {
        const OPERATION: &str = "change the protection of memory of an arena";
        let spans: Vec<_> = state.vma_map.within(range).collect();
        if spans.iter().any(|span| span.usage == Usage::Free) {
            return Err(Error::from_errno(OPERATION, Errno::NOMEM).on(range));
        }
        for span in spans {
            self.piece(span.range).protect(prot).during(OPERATION)?;
            if !matches!(span.usage, Usage::Foreign | Usage::Hole) {
                state.vma_map.set(span.range, span.usage, prot);
            }
        }
        if state.role == Role::Owner {
            self.shed_fragments(state, range);
        }
        Ok(())
    }

    /// Detaches chunks that `range` meets and that are cut into many mappings: a freeze makes two mappings of each,
    /// which takes longer than a fork that copies their page tables, and the kernel limits the number of mappings.
    fn shed_fragments(&self, state: &mut State, range: VirtRange) {
        if state.must_keep_frames() {
            return;
        }
        for chunk in self.chunks_of(range) {
            let whole = self.chunk_range(chunk, 1);
            let has_many = state.vma_map.span_count() > MANY_SPANS_IN_ALL;
            let most = if has_many { SPANS_WORTH_A_PAGE_TABLE } else { MANY_SPANS };
            if state.vma_map.within(whole).count() <= most {
                continue;
            }
            // If it fails, the memory stays, and a freeze takes longer.
            for used in state.vma_map.used_within(whole) {
                let _ = self.detach(state, used, Departure::Fragmented);
            }
        }
    }

    /// Makes the allocation `range` longer in place, if the space behind it is free.
    pub(crate) fn grow(&self, state: &mut State, range: VirtRange, len: usize) -> Result<bool> {
        let Some(end) = range.start.checked_add(len) else { return Ok(false) };
        let prot = state.vma_map.within(range).next().map_or(Prot::RW, |span| span.prot);
        self.allocate_at(state, VirtRange::between(range.end(), end), prot)
    }

    /// Resets memory that is handed out to zeroes, with another protection. `false` if a part of it is not handed out.
    pub(crate) fn remap_zeroed(
        &self,
        state: &mut State,
        range: VirtRange,
        prot: Prot,
    ) -> Result<bool> {
        let is_used = self.range.covers(range) && state.vma_map.is_all(range, Usage::Used);
        if is_used && prot.contains(Prot::RW) {
            // First: writable memory can be overwritten where it lies.
            self.protect(state, range, prot)?;
            self.discard(state, range)?;
        } else if is_used {
            self.discard(state, range)?;
            self.protect(state, range, prot)?;
        }
        Ok(is_used)
    }

    /// Notes that the program maps something of its own over `range`.
    pub(crate) fn replace_mapping(&self, state: &mut State, range: VirtRange) {
        state.vma_map.set(range, Usage::Foreign, Prot::NONE);
        self.end_borrowing(state);
        self.count_used(state);
    }

    /// Notes that memory in use there is private anonymous memory now.
    pub(crate) fn set_detached(&self, state: &mut State, range: VirtRange, prot: Prot) {
        state.vma_map.set(range, Usage::Detached, prot);
        self.count_used(state);
    }

    /// Overwrites memory with zeroes, page by page, where it is not zero: while frozen, private copies. Its user
    /// dropped the content, and no other thread uses it meanwhile.
    fn zero_in_place(&self, state: &State, part: VirtRange) -> Result<()> {
        let writable = state.vma_map.within(part).all(|span| span.prot.contains(Prot::RW));
        if !writable {
            return Err(Error::from_errno(DISCARD, Errno::AGAIN)
                .on(part)
                .because("it cannot be given back now, and it is not writable"));
        }
        for page in pages_of(part).map(|page| self.piece(page)).filter(|page| !page.is_zero()) {
            page.with_bytes(|bytes| bytes.fill(0));
        }
        Ok(())
    }

    pub(crate) fn count_used(&self, state: &State) {
        self.counters
            .used_bytes
            .store(state.vma_map.used_bytes(), std::sync::atomic::Ordering::Relaxed);
    }
}

/// The error of an operation that needs content that could not be restored.
pub(crate) fn lost(operation: &'static str, range: VirtRange) -> Error {
    Error::new(ErrorKind::Corrupt, operation)
        .on(range)
        .because("a part of it could not be restored from its image")
        .advise("give whole chunks of 2 MiB back to go on without it")
}

/// The pages of a page-aligned part.
pub(crate) fn pages_of(part: VirtRange) -> impl Iterator<Item = VirtRange> {
    let page = page_size_bytes();
    (part.start..part.end()).step_by(page).map(move |start| VirtRange::new(start, page))
}

//! One chunk, or a run with few private pages, from private to shared.
//!
//! ```text
//!   move aside ──▶ scan ──▶ copy private pages to the file ──▶ map shared ──▶ wake
//!        │ an access to the chunk waits here ...................................... ▲
//!        └─ error: move back, wake, stay frozen, try again later                    │ sees the
//!                                                                                   │ shared page
//! ```
//! A chunk with many private pages goes through this in two parts, so that a writer waits for a part. The page table
//! that the parts shared keeps its small entries. The chunk, which is shared throughout by then, is therefore mapped
//! once more at the end, and its next touch finds room for a huge one.
//!
//! The callers of [`Thawing::thaw`] ensure that the base of a thawed chunk has no readers. No store to the chunk
//! completes while it is [held](hold) (I1), so that every address shows the same content throughout.

mod base;
mod copy;
mod hold;
mod write_protect;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::memory::Prot;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::process::BlockedSignals;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{Errno, memfile, process};

use crate::arena::state::{Chunk, Event, ForkInheritance, Shared, State};
use crate::mapping::backing_file::{BackingFile, Pages, offset};
use crate::plan::settings::thaw::PART_BYTES;
use crate::plan::task::{Pace, many_pages};
use crate::service::{Service, Window};
use crate::timing::Stopwatch;
use base::Base;
pub(crate) use base::fill as fill_base;
use copy::{Run, copy_out};
use hold::{By, Hold};
pub(crate) use hold::{move_back, move_pages};
pub(crate) use write_protect::{halves, hold_writers, write_protect};

/// The most stack that a thaw and its callers need; every thread has at least as much.
const REACH_BYTES: usize = 64 << 10;

/// The tools of a thaw.
pub(crate) struct Thawing<'a> {
    pub(crate) shared: &'a Shared,
    /// Keeps threads from the chunks; without one, the caller ensures that no thread writes them.
    pub(crate) guard: Option<&'a Service>,
    pub(crate) scanner: &'a Scanner<ReservedFd>,
    pub(crate) window: &'a Window,
}

impl<'a> Thawing<'a> {
    pub(crate) fn new(shared: &'a Shared, service: &'a Service) -> Self {
        let Service { scanner, window, .. } = service;
        Self { shared, guard: Some(service), scanner, window }
    }

    /// Makes chunks of one file live in it: one, or several with few private pages. If the file is exposed, they move
    /// out of it.
    pub(crate) fn thaw(&self, state: &mut State, mut chunks: Range<usize>) -> Result<(), Errno> {
        if let Some(target) = self.shared.other_file(state, chunks.start)? {
            return chunks.try_for_each(|chunk| self.move_out(state, chunk, target, Pace::AtOnce));
        }
        let range = self.shared.chunk_range(chunks.start, chunks.len());
        let thawed = self.in_parts(state, chunks.clone(), [range], None, Pace::AtOnce);
        match thawed {
            // Much was written since they were chosen.
            Err(Errno::AGAIN) if chunks.len() > 1 => {
                self.thaw(state, chunks.start..chunks.start + 1)
            }
            thawed => thawed,
        }
    }

    /// Like [`Self::thaw`], for a chunk with many private pages.
    pub(crate) fn thaw_gently(&self, state: &mut State, chunk: usize) -> Result<(), Errno> {
        if let Some(target) = self.shared.other_file(state, chunk)? {
            return self.move_out(state, chunk, target, Pace::Gently);
        }
        self.in_parts(state, chunk..chunk + 1, self.parts(chunk), None, Pace::Gently)
    }

    /// Makes a chunk live in the file `target`, which has no readers, while its base may have some. A live chunk is one
    /// mapping.
    pub(crate) fn move_out(
        &self,
        state: &mut State,
        chunk: usize,
        target: u8,
        pace: Pace,
    ) -> Result<(), Errno> {
        let range = self.shared.chunk_range(chunk, 1);
        let chunks = chunk..chunk + 1;
        match pace {
            Pace::Gently => self.in_parts(state, chunks, self.parts(chunk), Some(target), pace),
            _ => self.in_parts(state, chunks, [range], Some(target), pace),
        }
    }

    fn parts(&self, chunk: usize) -> impl Iterator<Item = VirtRange> + use<> {
        let range = self.shared.chunk_range(chunk, 1);
        (0..CHUNK_BYTES / PART_BYTES)
            .map(move |i| VirtRange::new(range.start + i * PART_BYTES, PART_BYTES))
    }

    fn in_parts(
        &self,
        state: &mut State,
        chunks: Range<usize>,
        parts: impl IntoIterator<Item = VirtRange>,
        target: Option<u8>,
        pace: Pace,
    ) -> Result<(), Errno> {
        let shared = self.shared;
        let range = shared.chunk_range(chunks.start, chunks.len());
        let watch = Stopwatch::start();
        let mut pages = 0;
        let number = target.unwrap_or_else(|| state.map.file(chunks.start));
        let file = Arc::clone(state.files.get(number));
        file.check_identity()?;
        // Writers of live memory must wait for it.
        let is_held = pace == Pace::Held || state.chunk(chunks.start) == Chunk::Live;
        let mut prepared = None;
        match target {
            Some(_) => {
                let (window, scanner) = (self.window, self.scanner);
                let base = Base::prepare(shared, state, chunks.start, &file, window, scanner)?;
                match base {
                    Some(base) if is_held => {
                        base.read_in()?;
                        prepared = Some(base);
                    }
                    Some(base) => base.copy_to(&file)?,
                    None => {}
                }
            }
            None => shared.fill_borrowed(state, chunks.clone())?,
        }
        chunks.clone().for_each(|chunk| state.tracking.forget(chunk));
        let mut last = VirtRange::default();
        for part in parts {
            let pieces = state.pieces(part);
            let mut runs = Vec::with_capacity(most_runs(part, &pieces));
            let mut part_of = || {
                let watch = Stopwatch::start();
                let part = Part { range: part, pieces: &pieces, chunks: chunks.clone() };
                let moved = self.part(state, &part, &mut runs, number, &file, prepared.as_ref());
                (moved, watch.elapsed_ns())
            };
            let (moved, stall_ns) = match self.guard {
                Some(service) => service.outside(part_of),
                None => part_of(),
            };
            if self.guard.is_some() {
                shared.counters.stalled(stall_ns);
                if let (Ok((_, writers)), None) = (moved, target) {
                    state.plan.felt_ns += stall_ns * writers;
                }
            }
            if moved.is_err() && target.is_some() && state.chunk(chunks.start) != Chunk::Partial {
                // Nothing maps the copy, and the move may never be tried again.
                let _ =
                    memfile::punch_hole(file.fd(), offset(shared.range, range), range.len as u64);
            }
            pages += moved?.0;
            last = part;
        }
        if last != range {
            for (piece, prot) in state.pieces(range) {
                if let Err(errno) = self.map(state, &file, piece, prot) {
                    mark_partial(shared, state, chunks, range, number);
                    return Err(errno);
                }
            }
        }
        match target {
            Some(target) => {
                shared.vacate(state, chunks.start, target);
                state.change(chunks.start, Event::Move);
                shared.counters.moved_chunks.fetch_add(1, Relaxed);
            }
            None => {
                state.change_all(chunks.clone(), Event::Thaw);
                shared.counters.thawed_chunks.fetch_add(chunks.len() as u64, Relaxed);
            }
        }
        shared.end_borrowing(state);
        state.unmapped.add(range);
        let counters = &shared.counters;
        counters.thawed_pages.fetch_add(pages, Relaxed);
        counters.longest_thaw_chunk_ns.fetch_max(watch.elapsed_ns(), Relaxed);
        counters.frozen_chunks.store(state.not_live() as u64, Relaxed);
        shared.wake_if_live(state);
        Ok(())
    }

    fn map(
        &self,
        state: &State,
        file: &BackingFile,
        piece: VirtRange,
        prot: Prot,
    ) -> Result<(), Errno> {
        file.map_live(self.shared.piece(piece), prot)?;
        self.shared.mark_base(state, piece);
        Ok(())
    }

    /// Makes a part of `chunks` shared, once the file is filled. Returns how many private pages it had and how many
    /// writers waited.
    fn part(
        &self,
        state: &mut State,
        Part { range: part, pieces, chunks }: &Part<'_>,
        runs: &mut Vec<Run>,
        number: u8,
        file: &BackingFile,
        prepared: Option<&Base<'_>>,
    ) -> Result<(u64, u64), Errno> {
        let shared = self.shared;
        let mut mapped_to = part.start;
        let by = match state.chunk(chunks.start) {
            kind if kind == Chunk::Partial || shared.pages == Pages::Hugetlb => By::Protection,
            kind => By::Move { has_file: kind != Chunk::Anonymous },
        };
        if self.guard.is_some() && state.inheritance == ForkInheritance::Whole {
            // Held memory is kept from children, and stays so after an error.
            state.inheritance = ForkInheritance::Part;
        }
        let hold = self.guard.map(|service| Hold::begin(shared, service, *part, pieces, by));
        let (mut hold, refused) = match hold.transpose() {
            Ok(hold) => (hold, None),
            Err(errno) => (None, Some(errno)),
        };
        let moved = (|| {
            if let Some(errno) = refused {
                return Err(errno);
            }
            if let Some(base) = prepared {
                base.copy_to(file)?;
            }
            let pages = if state.chunk(chunks.start) == Chunk::Live {
                0
            } else {
                self.find_private(pieces, runs, hold.as_ref())?;
                self.save_private(state, chunks.clone(), *part, runs, file)?
            };
            for (piece, prot) in *pieces {
                self.map(state, file, *piece, *prot)?;
                mapped_to = piece.end();
                if let Some(hold) = &mut hold {
                    hold.done(mapped_to);
                }
            }
            Ok(pages)
        })();
        let writers = hold.as_ref().map_or(0, Hold::count_waiting);
        shared.counters.waits.fetch_add(writers, Relaxed);
        drop(hold);
        if moved.is_err() {
            let first = shared.chunk_range(chunks.start, 1).start;
            let done = VirtRange::between(first, mapped_to);
            mark_partial(shared, state, chunks.clone(), done, number);
        }
        moved.map(|pages| (pages, writers))
    }

    /// Finds the private pages of `pieces`: `EAGAIN` if there is no room left for them in `runs`, or if several chunks have
    /// so many that writers would wait for long.
    fn find_private(
        &self,
        pieces: &[(VirtRange, Prot)],
        runs: &mut Vec<Run>,
        hold: Option<&Hold<'_>>,
    ) -> Result<(), Errno> {
        let shared = self.shared;
        let all: usize = pieces.iter().map(|(piece, _)| piece.len).sum();
        let most = if all > CHUNK_BYTES { many_pages() } else { u64::MAX };
        let (mut pages, mut is_full) = (0, false);
        for (piece, prot) in pieces {
            let content = hold.map_or_else(|| *shared.piece(*piece), |hold| hold.content(*piece));
            self.scanner.private_runs(*content, |source| {
                let place = piece.start + (source.start - content.start);
                for (_, to) in shared.by_chunk(VirtRange::new(place, source.len)) {
                    let from = VirtRange::new(source.start + (to.start - place), to.len);
                    pages += (from.len / page_size_bytes()) as u64;
                    is_full |= runs.len() == runs.capacity() || pages > most;
                    if !is_full {
                        runs.push(Run { from: content.part(from), to, prot: *prot });
                    }
                }
            })?;
        }
        if is_full { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// Copies the private pages `runs` of a `part` of `chunks` into the file, and returns their number.
    fn save_private(
        &self,
        state: &State,
        chunks: Range<usize>,
        part: VirtRange,
        runs: &[Run],
        file: &BackingFile,
    ) -> Result<u64, Errno> {
        let shared = self.shared;
        for chunk in chunks {
            let range = shared.chunk_range(chunk, 1);
            let is_unused = state.vma_map.is_unused(range);
            let begins = part.start <= range.start;
            if begins && (is_unused || state.chunk(chunk) == Chunk::Anonymous) {
                // The base's content is no longer used. The program's later writes follow.
                let at = offset(shared.range, range);
                memfile::punch_hole(file.fd(), at, range.len as u64)?;
            }
        }
        let mut pages = 0;
        for runs in runs.chunk_by(|a, b| a.to.start / CHUNK_BYTES == b.to.start / CHUNK_BYTES) {
            let is_base = state.vma_map.is_base(runs[0].to.start);
            pages += copy_out(file, shared.range, runs, is_base, self.window, self.scanner)?;
        }
        Ok(pages)
    }
}

/// A part of chunks that becomes live at once.
struct Part<'a> {
    range: VirtRange,
    pieces: &'a [(VirtRange, Prot)],
    chunks: Range<usize>,
}

/// The most runs of private pages that a part of one chunk can have. A part of several chunks had few a moment ago.
fn most_runs(part: VirtRange, pieces: &[(VirtRange, Prot)]) -> usize {
    part.len.min(CHUNK_BYTES) / page_size_bytes() / 2 + 1 + pieces.len()
}

/// Thaws a chunk by itself: one that has no file, or of which a part is live.
pub(crate) fn thaw_alone(
    shared: &Shared,
    state: &mut State,
    chunk: usize,
    service: &Service,
) -> Result<(), Errno> {
    Thawing::new(shared, service).thaw(state, chunk..chunk + 1)
}

/// Thaws one chunk now, in this thread, out of turn. Its base has no readers. `BUSY` if this thread needs the chunk to
/// go on.
pub(crate) fn at_once(shared: &Shared, state: &mut State, chunk: usize) -> Result<(), Errno> {
    if state.chunk(chunk) == Chunk::Live {
        return Ok(());
    }
    let _blocked = enter(shared.chunk_range(chunk, 1))?;
    let service = shared.service(state).ok_or(Errno::NODEV)?;
    let thawed = thaw_alone(shared, state, chunk, &service);
    service.window.close();
    thawed
}

/// Prepares this thread for making stores to `range` wait: it would wait for itself if its stack were there (`BUSY`),
/// or if a signal handler stored to it.
pub(crate) fn enter(range: VirtRange) -> Result<BlockedSignals, Errno> {
    if contains_current_stack(range) { Err(Errno::BUSY) } else { Ok(BlockedSignals::enter()) }
}

/// True if this thread needs memory of `range` to thaw it: its stack, from the deepest call of a thaw up to its
/// callers, or libc's data beside the thread pointer.
pub(crate) fn contains_current_stack(range: VirtRange) -> bool {
    let start = range.start.saturating_sub(REACH_BYTES);
    process::stands_in(VirtRange::between(start, range.end().saturating_add(REACH_BYTES)))
}

/// Counts the private pages of a chunk, up to `most`, while threads write.
pub(crate) fn private_pages(
    shared: &Shared,
    state: &State,
    chunk: usize,
    most: u64,
    scanner: &Scanner<ReservedFd>,
) -> Result<u64, Errno> {
    let mut pages = 0;
    for (piece, _) in state.pieces(shared.chunk_range(chunk, 1)) {
        pages += scanner.count_private(piece, most)?;
    }
    Ok(pages)
}

/// Marks `chunks`, after a thaw failed that had already mapped `done` to the file of that number.
fn mark_partial(
    shared: &Shared,
    state: &mut State,
    chunks: Range<usize>,
    done: VirtRange,
    number: u8,
) {
    for chunk in chunks {
        let range = shared.chunk_range(chunk, 1);
        if range.intersect(done).is_empty() {
            continue;
        }
        // The file has all its content now, and private pages are newer. A chunk mapped whole only has to be marked
        // live, which the next attempt does.
        if state.map.file(chunk) != number {
            shared.vacate(state, chunk, number);
        }
        state.change(chunk, Event::Break);
    }
}

#![allow(unsafe_code)]
//! The instant of a freeze: from shared to private.
//!
//! # Safety
//! Everything here maps parts of an arena, which this library owns. Under each address the program
//! sees the same content before and after: the pages of the file as they are at the instant in which
//! no thread can reach them. Views are reserved here and handed out when all is done.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

use super::Way;
use super::readers::{OwnerToken, ReaderToken};
use super::service::Service;
use crate::arena::state::{Chunk, Shared, State};
use crate::arena::store::{POOL_HINT, Pages, offset};
use crate::error::{During, Error, ErrorKind, Result};
use crate::sys::memory::{self, Prot, Sharing};
use crate::sys::uffd::RegisterMode;
use crate::sys::{Errno, process};
use crate::units::{GIB_BYTES, VirtRange};

const OPERATION: &str = "freeze";

/// One arena of a freeze, locked.
pub(crate) struct Flip<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) state: MutexGuard<'a, State>,
    /// Mappings to make private: each of one protection, in live chunks that hold used memory.
    pieces: Vec<(VirtRange, Prot)>,
    view: VirtRange,
}

impl<'a> Flip<'a> {
    /// Works out what to flip and gets ready all that can fail beforehand.
    pub(crate) fn plan(shared: &'a Shared, mut state: MutexGuard<'a, State>) -> Result<Self> {
        shared.store.check()?;
        if state.service.is_none() && shared.wants_userfaultfd {
            // Without it the freeze goes the plain way.
            state.service = Service::start(shared).ok();
        }
        shared.counters.has_userfaultfd.store(u64::from(state.service.is_some()), Relaxed);
        if state.readers.is_none() {
            state.readers = Some(ReaderToken::new()?);
        }
        if state.owner.is_none() {
            state.owner = Some(OwnerToken::new()?);
        }
        let mut pieces = Vec::new();
        let mut from = 0;
        while let Some(run) = state.next_run(from, usize::MAX, |chunk| chunk == Chunk::Live) {
            from = run.end;
            for range in used_runs(shared, &state, run) {
                pieces.extend(state.ledger.pieces(range));
            }
        }
        let view = memory::reserve(shared.range.len, GIB_BYTES).during(OPERATION)?;
        Ok(Self { shared, state, pieces, view })
    }

    /// A locked arena of which nothing is to be flipped.
    pub(crate) fn nothing(shared: &'a Shared, state: MutexGuard<'a, State>) -> Self {
        Self { shared, state, pieces: Vec::new(), view: VirtRange::default() }
    }

    /// Nothing is live that a fork would share.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn in_view(&self, piece: VirtRange) -> VirtRange {
        VirtRange::new(self.view.start + (piece.start - self.shared.range.start), piece.len)
    }

    fn mark_frozen(&mut self, pieces: usize) {
        for i in 0..pieces {
            for chunk in self.shared.chunks_of(self.pieces[i].0) {
                self.state.set_chunk(chunk, Chunk::Frozen);
            }
        }
        self.state.thaw.armed = false;
    }

    /// Keeps the view for a reader in this process.
    pub(crate) fn into_view(mut self, way: Way) -> Result<VirtRange> {
        self.state.views += 1;
        let mapped: Result<()> = (|| {
            if way == Way::Plain {
                for (piece, _) in &self.pieces {
                    let place = self.in_view(*piece);
                    let at = offset(self.shared.range, *piece);
                    // SAFETY: see the module.
                    unsafe {
                        memory::map_file(
                            place,
                            self.shared.store.fd(),
                            at,
                            Sharing::Shared,
                            Prot::READ,
                        )
                    }
                    .during("map a view")?;
                }
            }
            let pieces: Vec<_> = self.pieces.iter().map(|(piece, _)| *piece).collect();
            super::make_readable(self.view, &pieces, self.shared.range)
        })();
        if let Err(error) = mapped {
            self.state.views -= 1;
            self.discard_view();
            return Err(error);
        }
        Ok(std::mem::take(&mut self.view))
    }

    /// Gives the view up: its page tables go bit by bit, in the background.
    pub(crate) fn discard_view(&mut self) {
        let view = std::mem::take(&mut self.view);
        if view.is_empty() {
            return;
        }
        if self.state.service.is_some() {
            self.state.stale.push(view);
            self.state.notify();
        } else {
            // SAFETY: nobody has this view.
            let _ = unsafe { memory::unmap(view) };
        }
    }
}

impl Drop for Flip<'_> {
    fn drop(&mut self) {
        self.discard_view();
    }
}

/// The parts of a run of live chunks that hold used memory: whole chunks, neighbours joined.
fn used_runs(shared: &Shared, state: &State, run: std::ops::Range<usize>) -> Vec<VirtRange> {
    let mut runs: Vec<VirtRange> = Vec::new();
    let whole = shared.chunk_range(run.start, run.len());
    for span in state.ledger.within(whole) {
        if span.usage != crate::arena::ledger::Usage::Used {
            continue;
        }
        let touched = shared.chunks_of(span.range);
        let range = shared.chunk_range(touched.start, touched.len());
        match runs.last_mut() {
            Some(last) if last.end() >= range.start => {
                *last = VirtRange::between(last.start, range.end());
            }
            _ => runs.push(range),
        }
    }
    runs
}

/// Freezes all of `flips` at one instant.
pub(crate) fn flip(flips: &mut [Flip<'_>]) -> Result<Way> {
    let here = std::hint::black_box(0u8);
    let stack = std::ptr::from_ref(&here) as usize;
    let can_move = flips.iter().all(|flip| {
        // A freeze that ran on a stack inside the arena would wait for itself.
        flip.state.service.is_some()
            && flip.shared.store.pages != Pages::Hugetlb
            && !flip.shared.range.contains(stack)
    });
    let began = process::now_ns();
    let result = if can_move {
        match moved(flips) {
            Ok(()) => Ok(Way::Userfaultfd),
            Err(error) if error.kind() == ErrorKind::OutOfMemory => Err(error),
            Err(_) => plain(flips).map(|()| Way::Plain),
        }
    } else {
        plain(flips).map(|()| Way::Plain)
    };
    let ns = process::now_ns() - began;
    for flip in flips.iter_mut() {
        let counters = flip.shared.counters;
        if result.is_err() {
            counters.failed_freezes.fetch_add(1, Relaxed);
            continue;
        }
        counters.freezes.fetch_add(1, Relaxed);
        counters.plain_freezes.fetch_add(u64::from(matches!(result, Ok(Way::Plain))), Relaxed);
        counters.last_freeze_ns.store(ns, Relaxed);
        counters.longest_freeze_ns.fetch_max(ns, Relaxed);
        counters.stalled(ns);
        counters.frozen_chunks.store(flip.state.not_live() as u64, Relaxed);
    }
    result
}

/// Moves the pages away, so that every access waits, then maps privately and wakes.
fn moved(flips: &mut [Flip<'_>]) -> Result<()> {
    if let Err(errno) = move_all(flips) {
        for flip in flips.iter() {
            let Some(service) = &flip.state.service else { continue };
            for (piece, _) in &flip.pieces {
                // Not registered is fine; what was moved is a shared mapping again, and live.
                let _ = service.uffd().unregister(*piece);
                let _ = service.uffd().wake(*piece);
            }
        }
        return Err(Error::from_errno(OPERATION, errno).on(flips[0].shared.range));
    }
    let mapped = map_all(flips);
    for flip in flips.iter() {
        let Some(service) = &flip.state.service else { continue };
        if mapped.is_err() {
            // What was not mapped privately is live again.
            for (piece, _) in &flip.pieces {
                let _ = service.uffd().unregister(*piece);
            }
        }
        let _ = service.uffd().wake(flip.shared.range);
        // The view took the registration along; a reader of it must not wait for anybody.
        for (piece, _) in &flip.pieces {
            let _ = service.uffd().unregister(flip.in_view(*piece));
        }
    }
    mapped.map_err(|errno| Error::from_errno(OPERATION, errno).hint(MAP_HINT))
}

const MAP_HINT: &str = "the kernel refused a private mapping: too many mappings \
    (vm.max_map_count), or vm.overcommit_memory=2 leaves no room for private copies";

fn move_all(flips: &[Flip<'_>]) -> Result<(), Errno> {
    for flip in flips {
        let service = flip.state.service.as_ref().ok_or(Errno::NODEV)?;
        for (piece, _) in &flip.pieces {
            service.uffd().register(*piece, RegisterMode::MISSING | RegisterMode::MINOR)?;
        }
    }
    for flip in flips {
        for (piece, _) in &flip.pieces {
            // SAFETY: see the module.
            unsafe { memory::move_pages_out(*piece, flip.in_view(*piece)) }?;
        }
    }
    Ok(())
}

/// Maps every piece privately. If one fails, the arenas before it are frozen in part, without a
/// reader, and their service thread thaws them.
fn map_all(flips: &mut [Flip<'_>]) -> Result<(), Errno> {
    for flip in flips.iter_mut() {
        let mut done = 0;
        let mapped = flip.pieces.iter().try_for_each(|(piece, prot)| {
            let at = offset(flip.shared.range, *piece);
            // SAFETY: see the module.
            unsafe {
                memory::map_file(*piece, flip.shared.store.fd(), at, Sharing::Private, *prot)
            }?;
            done += 1;
            Ok(())
        });
        flip.mark_frozen(done);
        if mapped.is_err() {
            flip.state.notify();
        }
        mapped?;
    }
    Ok(())
}

/// One mapping over the other, for each piece. For hugetlb the pool pays for every copy beforehand.
fn plain(flips: &mut [Flip<'_>]) -> Result<()> {
    let mut reserved = Vec::new();
    for flip in flips.iter() {
        if flip.shared.store.pages == Pages::Hugetlb {
            for (piece, _) in &flip.pieces {
                match reserve_copies(flip, *piece) {
                    Ok(place) => reserved.push(place),
                    Err(errno) => {
                        for place in reserved {
                            // SAFETY: reserved above, for this freeze alone.
                            let _ = unsafe { memory::unmap(place) };
                        }
                        return Err(Error::from_errno(OPERATION, errno).on(*piece).hint(POOL_HINT));
                    }
                }
            }
        }
    }
    let mut reserved = reserved.into_iter();
    for flip in flips.iter_mut() {
        let mut done = 0;
        let mapped = flip.pieces.iter().try_for_each(|(piece, prot)| {
            // SAFETY: see the module.
            unsafe {
                if flip.shared.store.pages == Pages::Hugetlb {
                    let place = reserved.next().ok_or(Errno::NOMEM)?;
                    memory::protect(place, *prot)?;
                    memory::move_mapping(place, *piece)?;
                } else {
                    let at = offset(flip.shared.range, *piece);
                    memory::map_file(*piece, flip.shared.store.fd(), at, Sharing::Private, *prot)?;
                }
            }
            done += 1;
            Ok(())
        });
        flip.mark_frozen(done);
        mapped.map_err(|errno| Error::from_errno(OPERATION, errno).hint(MAP_HINT))?;
    }
    Ok(())
}

/// A private mapping elsewhere, for whose copies the pool has set pages aside.
fn reserve_copies(flip: &Flip<'_>, piece: VirtRange) -> Result<VirtRange, Errno> {
    let at = offset(flip.shared.range, piece);
    memory::map_file_reserved(piece.len, flip.shared.store.fd(), at, Sharing::Private)
}

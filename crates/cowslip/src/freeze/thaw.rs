#![allow(unsafe_code)]
//! Thaw: private copies go back into the file, chunk by chunk, while threads write.
//!
//! ```text
//!   write-protect ──▶ scan ──▶ copy private pages to the file ──▶ map shared ──▶ wake
//!        │ a store to the chunk waits here ............................................ ▲
//!        └─ error: unprotect, wake, stay frozen, try again later                        │ sees the
//!                                                                                       │ shared page
//! ```
//! Runs of clean chunks go in one step; a chunk with private pages goes alone, so that a writer waits
//! for one chunk's copies at most.
//!
//! # Safety
//! The ranges are frozen parts of an arena, which this library owns. Nobody reads their base any more
//! (the caller of [`step`] made sure), and no store to them completes between the protection and the
//! new mapping (I1), so that every address shows the same content throughout.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::service::Service;
use crate::arena::ledger::Usage;
use crate::arena::state::{Chunk, Role, Shared, State};
use crate::arena::store::{Pages, offset};
use crate::error::{During, Error, Result};
use crate::sys::held::HeldFd;
use crate::sys::memory::{self, Prot, Sharing};
use crate::sys::pagemap::Scanner;
use crate::sys::uffd::{Outcome, RegisterMode, Uffd};
use crate::sys::{Errno, memfile, process};
use crate::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

/// What the service thread does next.
pub(crate) enum Step {
    /// There is more to do.
    Again,
    /// Nothing can be done before this has passed.
    Later(Duration),
    /// Nothing is to be done.
    Idle,
}

/// Clean chunks thawed in one step at most.
const RUN_CHUNKS: usize = 16;
/// Of an old view, unmapped in one step.
const VIEW_STEP_BYTES: usize = 32 << 20;
const READERS_FIRST_LOOK_NS: u64 = 2_000_000;
const READERS_LAST_LOOK_NS: u64 = 1_000_000_000;
const RETRY_FIRST_NS: u64 = 20_000_000;
const RETRY_LAST_NS: u64 = 5_000_000_000;

/// Does one small piece of background work.
pub(crate) fn step(shared: &Shared, state: &mut State) -> Step {
    if let Some(view) = state.stale.last_mut() {
        let part = VirtRange::new(view.start, view.len.min(VIEW_STEP_BYTES));
        // SAFETY: nobody has this view any more.
        let _ = unsafe { memory::unmap(part) };
        *view = VirtRange::between(part.end(), view.end());
        if view.is_empty() {
            state.stale.pop();
        }
        return Step::Again;
    }
    if state.not_live() == 0 || state.role == Role::Reader || state.views > 0 || state.thaw.paused {
        return Step::Idle;
    }
    if is_read(state) {
        return Step::Later(backoff(
            &mut state.thaw.delay_ns,
            READERS_FIRST_LOOK_NS,
            READERS_LAST_LOOK_NS,
        ));
    }
    if state.readers.take().is_some() {
        state.thaw.delay_ns = 0;
        state.thaw.not_before_ns = 0;
    }
    let now = process::now_ns();
    if now < state.thaw.not_before_ns {
        return Step::Later(Duration::from_nanos(state.thaw.not_before_ns - now));
    }
    let began_ns = *state.thaw.began_ns.get_or_insert(now);
    match thaw_next(shared, state) {
        Ok(()) => {}
        Err(errno) => {
            shared.counters.failed_thaw_chunks.fetch_add(1, Relaxed);
            shared.counters.last_thaw_errno.store(errno.raw_os_error() as u64, Relaxed);
            let delay = backoff(&mut state.thaw.delay_ns, RETRY_FIRST_NS, RETRY_LAST_NS);
            state.thaw.not_before_ns = process::now_ns() + delay.as_nanos() as u64;
            return Step::Later(delay);
        }
    }
    state.thaw.delay_ns = 0;
    if state.not_live() > 0 {
        return Step::Again;
    }
    finish(shared, state, began_ns);
    Step::Idle
}

/// Whether another process still reads the base. If not, the token is spent.
fn is_read(state: &mut State) -> bool {
    let Some(readers) = &state.readers else { return false };
    if state.thaw.hide_again {
        state.thaw.hide_again = readers.hide().is_err();
    }
    readers.is_read()
}

fn backoff(delay_ns: &mut u64, first_ns: u64, last_ns: u64) -> Duration {
    *delay_ns = (*delay_ns * 2).clamp(first_ns, last_ns);
    Duration::from_nanos(*delay_ns)
}

fn finish(shared: &Shared, state: &mut State, began_ns: u64) {
    state.thaw.began_ns = None;
    state.thaw.armed = false;
    shared.counters.thaws.fetch_add(1, Relaxed);
    shared.counters.last_thaw_ns.store(process::now_ns() - began_ns, Relaxed);
    shared.counters.frozen_chunks.store(0, Relaxed);
    shared.changed.notify_all();
}

fn thaw_next(shared: &Shared, state: &mut State) -> Result<(), Errno> {
    let Some(service) = state.service.take() else { return Err(Errno::NODEV) };
    let done = thaw_run(shared, state, &service);
    state.service = Some(service);
    done
}

fn thaw_run(shared: &Shared, state: &mut State, service: &Service) -> Result<(), Errno> {
    if !state.thaw.armed {
        let mut from = 0;
        while let Some(run) = state.next_run(from, usize::MAX, Chunk::is_private_file) {
            from = run.end;
            for (piece, _) in state.ledger.pieces(shared.chunk_range(run.start, run.len())) {
                service.uffd().register(piece, RegisterMode::WP)?;
            }
        }
        state.thaw.armed = true;
    }
    let Some(run) = state.next_run(0, RUN_CHUNKS, |chunk| chunk != Chunk::Live) else {
        return Ok(());
    };
    let first = run.start;
    let is_plain = |i| state.chunk(i).is_private_file() && !state.mixed.contains(&i);
    if !is_plain(first) {
        return thaw_alone(shared, state, first, service);
    }
    let frozen = run.clone().take_while(|&i| is_plain(i)).count();
    let clean = clean_prefix(shared, state, first..first + frozen, service.scanner())?;
    let run = first..first + clean.max(1);
    thaw_chunks(shared, state, run, Some(service.uffd()), service.scanner())
}

/// Thaws a chunk that has private pages without a file behind them.
fn thaw_alone(
    shared: &Shared,
    state: &mut State,
    chunk: usize,
    service: &Service,
) -> Result<(), Errno> {
    let pieces = state.ledger.pieces(shared.chunk_range(chunk, 1));
    // Without a file there are no markers for pages that are not there: missing faults wait too.
    let mode = RegisterMode::MISSING | RegisterMode::WP;
    let thawed = pieces
        .iter()
        .try_for_each(|(piece, _)| service.uffd().register(*piece, mode))
        .and_then(|()| {
            thaw_chunks(shared, state, chunk..chunk + 1, Some(service.uffd()), service.scanner())
        });
    if thawed.is_err() {
        // Or who touches a page that is not there waits until a later attempt succeeds.
        for (piece, _) in &pieces {
            let _ =
                service.uffd().unregister(*piece).or_else(|_| service.uffd().unregister(*piece));
        }
        state.thaw.armed = false;
    }
    thawed
}

/// Thaws one chunk now, though it is not its turn. Nobody reads its base.
pub(crate) fn at_once(shared: &Shared, state: &mut State, chunk: usize) -> Result<(), Errno> {
    if state.chunk(chunk) == Chunk::Live {
        return Ok(());
    }
    let Some(service) = state.service.take() else { return Err(Errno::NODEV) };
    let thawed = thaw_alone(shared, state, chunk, &service);
    state.service = Some(service);
    thawed
}

/// Makes chunks live that an operation which failed left between two states: a child would lack a
/// part of them. Nobody reads their base, as nothing was forked since.
pub(crate) fn mend(shared: &Shared, state: &mut State) -> Result<()> {
    for chunk in state.mixed.clone() {
        at_once(shared, state, chunk).map_err(|errno| {
            Error::from_errno("make memory live again after a failure", errno)
                .on(shared.chunk_range(chunk, 1))
                .hint("try again; without userfaultfd, use Arena::thaw_unattended")
        })?;
    }
    Ok(())
}

/// How many chunks from the first on have no private page, as far as can be said while threads write.
fn clean_prefix(
    shared: &Shared,
    state: &State,
    run: Range<usize>,
    scanner: &Scanner<HeldFd>,
) -> Result<usize, Errno> {
    let mut clean = 0;
    for chunk in run {
        for (piece, _) in state.ledger.pieces(shared.chunk_range(chunk, 1)) {
            if scanner.has_private(piece)? {
                return Ok(clean);
            }
        }
        clean += 1;
    }
    Ok(clean)
}

/// Makes chunks live. `guard` holds writers off; without one nobody may write.
fn thaw_chunks(
    shared: &Shared,
    state: &mut State,
    chunks: Range<usize>,
    guard: Option<&Uffd<HeldFd>>,
    scanner: &Scanner<HeldFd>,
) -> Result<(), Errno> {
    let range = shared.chunk_range(chunks.start, chunks.len());
    let pieces = state.ledger.pieces(range);
    let began_ns = process::now_ns();
    let thawed = (|| {
        if let Some(uffd) = guard {
            for (piece, _) in &pieces {
                write_protect(uffd, *piece, true)?;
            }
        }
        let pages = save_private(shared, state, chunks.clone(), &pieces, scanner)?;
        for (i, (piece, prot)) in pieces.iter().enumerate() {
            if let Err(errno) = shared.store.map_live(shared.range, *piece, *prot) {
                mark_mixed(
                    shared,
                    state,
                    chunks.clone(),
                    VirtRange::between(
                        range.start,
                        pieces[..i].last().map_or(range.start, |(done, _)| done.end()),
                    ),
                );
                return Err(errno);
            }
        }
        Ok(pages)
    })();
    if let Some(uffd) = guard {
        if thawed.is_err() {
            for (piece, _) in &pieces {
                // What is shared again has no protection to take away.
                let _ = write_protect(uffd, *piece, false);
            }
            state.thaw.armed = false;
        }
        // After the mappings, so that who wakes finds them; on errors too (I6).
        uffd.wake(range).or_else(|_| uffd.wake(range))?;
    }
    let pages = thawed?;
    let ns = process::now_ns() - began_ns;
    for chunk in chunks.clone() {
        state.set_chunk(chunk, Chunk::Live);
    }
    state.mixed.retain(|chunk| !chunks.contains(chunk));
    let counters = shared.counters;
    counters.thawed_chunks.fetch_add(chunks.len() as u64, Relaxed);
    counters.thawed_pages.fetch_add(pages, Relaxed);
    counters.longest_thaw_chunk_ns.fetch_max(ns, Relaxed);
    counters.stalled(ns);
    counters.frozen_chunks.store(state.not_live() as u64, Relaxed);
    Ok(())
}

/// A thaw of `chunks` failed after it had mapped what lies in `done`.
fn mark_mixed(shared: &Shared, state: &mut State, chunks: Range<usize>, done: VirtRange) {
    for chunk in chunks {
        let range = shared.chunk_range(chunk, 1);
        if range.intersect(done).is_empty() {
            continue;
        }
        // The file has all its content now, and private pages are newer. A chunk mapped whole needs
        // no more than to be called live, which the next attempt does.
        state.set_chunk(chunk, Chunk::Frozen);
        if !state.mixed.contains(&chunk) {
            state.mixed.push(chunk);
        }
    }
}

fn write_protect(uffd: &Uffd<HeldFd>, piece: VirtRange, protect: bool) -> Result<(), Errno> {
    // EAGAIN lasts as long as a remap event is unread; this arena's lock keeps new ones from coming.
    for _ in 0..1000 {
        match uffd.write_protect(piece, protect) {
            Ok(Outcome::Done | Outcome::AlreadyMapped) => return Ok(()),
            Ok(Outcome::Again { .. }) => std::thread::yield_now(),
            // Older kernels (6.1) want one mapping and no more in the range. What was frozen at
            // different times may be several, as each has a history of copies of its own.
            Err(Errno::NOENT) if piece.len > page_size_bytes() => {
                let unit = if piece.len > CHUNK_BYTES { CHUNK_BYTES } else { page_size_bytes() };
                let middle = (piece.start + piece.len / 2).next_multiple_of(unit);
                let middle = if middle < piece.end() { middle } else { middle - unit };
                write_protect(uffd, VirtRange::between(piece.start, middle), protect)?;
                return write_protect(uffd, VirtRange::between(middle, piece.end()), protect);
            }
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::AGAIN)
}

/// Copies the private pages of chunks into the file: how many they were.
fn save_private(
    shared: &Shared,
    state: &State,
    chunks: Range<usize>,
    pieces: &[(VirtRange, Prot)],
    scanner: &Scanner<HeldFd>,
) -> Result<u64, Errno> {
    let mut runs = Vec::new();
    for (piece, prot) in pieces {
        scanner.private_runs(*piece, |run| runs.push((run, *prot)))?;
    }
    for chunk in chunks {
        let range = shared.chunk_range(chunk, 1);
        let is_free = state.ledger.is_all(range, Usage::Free);
        if is_free || state.chunk(chunk) == Chunk::Overlay {
            // The base's content is nobody's any more. What the program wrote since follows.
            memfile::punch_hole(shared.store.fd(), offset(shared.range, range), range.len as u64)?;
        }
    }
    let mut pages = 0;
    for (run, prot) in runs {
        save_run(shared, run, prot)?;
        pages += (run.len / page_size_bytes()) as u64;
    }
    Ok(pages)
}

fn save_run(shared: &Shared, run: VirtRange, prot: Prot) -> Result<(), Errno> {
    if !prot.contains(Prot::READ) {
        // Guarded memory may hold content too. Nobody can write it, and it is mapped anew, guarded,
        // as soon as it is copied.
        // SAFETY: see the module.
        unsafe { memory::protect(run, Prot::READ) }?;
    }
    let at = offset(shared.range, run);
    if shared.store.pages != Pages::Hugetlb {
        // SAFETY: the run is mapped and its pages are held from writers.
        return unsafe { memfile::write_range_at(shared.store.fd(), run, at) };
    }
    // hugetlbfs has no write(2): copy through a short-lived mapping, whose pages the file has already.
    let window = memory::map_file_reserved(run.len, shared.store.fd(), at, Sharing::Shared)?;
    // SAFETY: both ranges are mapped, as long, and different; nobody writes to either.
    unsafe {
        core::ptr::copy_nonoverlapping(run.start as *const u8, window.start as *mut u8, run.len);
        memory::unmap(window)
    }
}

/// Thaws everything in this thread, while nobody writes.
pub(crate) fn unattended(shared: &Shared, state: &mut State) -> Result<()> {
    const OPERATION: &str = "thaw";
    if state.role == Role::Reader || state.views > 0 || is_read(state) {
        return Err(Error::from_errno(OPERATION, Errno::BUSY)
            .hint("a view or a child still reads the frozen memory"));
    }
    state.readers = None;
    let pagemap = HeldFd::hold(memfile::open_proc_self("pagemap").during(OPERATION)?);
    let scanner = Scanner::new(pagemap);
    let began_ns = process::now_ns();
    while let Some(run) = state.next_run(0, 1, |chunk| chunk != Chunk::Live) {
        let range = shared.chunk_range(run.start, 1);
        thaw_chunks(shared, state, run, None, &scanner)
            .map_err(|errno| Error::from_errno(OPERATION, errno).on(range))?;
    }
    finish(shared, state, began_ns);
    Ok(())
}

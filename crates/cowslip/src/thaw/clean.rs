//! Chunks that nothing was written to stay as they are, and can be told from others at the next freeze.
//!
//! ```text
//!   frozen ──no private page, nobody reads the base──▶ clean ─a page is private──▶ thawed
//!      ▲                                                │
//!      └──────────────────── freeze ────────────────────┘
//! ```
//! Marking a chunk clean changes nothing: its mapping stays. A store at the same time makes a private copy, as before
//! and after, and the next look finds the copy: the service thread looks now and then, so that chunks that are written
//! often are live and on huge pages; every freeze to a view looks before and during its pause.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cowslip_sys::pagemap::Method;
use cowslip_sys::units::CHUNK_BYTES;
use cowslip_sys::{Errno, process};

use crate::arena::chunk::{MANY_PAGES, Thawing, enter, private_pages};
use crate::arena::state::{Chunk, Event, Look, Shared, State};
use crate::mapping::backing_file::Pages;
use crate::memory::backoff::backoff;
use crate::memory::step::Step;
use crate::service::Service;

/// Chunks looked at in one step.
const LOOK_CHUNKS: usize = 64;
const LOOK_FIRST_NS: u64 = 20_000_000;
const LOOK_LAST_NS: u64 = 250_000_000;
/// The most runs of clean chunks: each is a mapping of its own, which every freeze has to move.
const MOST_RUNS: usize = 64;

/// True if changes can be tracked at the promised cost: a look at pages mapped one by one, or at their entries, would
/// take milliseconds a GiB.
pub(crate) fn can_keep(shared: &Shared, service: &Service) -> bool {
    let is_huge = matches!(shared.pages, Pages::HugeTmpfs | Pages::HugeMemfd);
    is_huge && service.scanner.method() == Method::Scan
}

/// Looks at some of the clean chunks, and makes one that was written live.
pub(super) fn look(shared: &Shared, state: &mut State) -> Step {
    if state.map.count(Chunk::Clean) == 0 {
        state.thaw.look = Look::default();
        return Step::Idle;
    }
    let early_ns = state.thaw.look.not_before_ns.saturating_sub(process::now_ns());
    if early_ns > 0 {
        return Step::Later(Duration::from_nanos(early_ns));
    }
    let looked = serving(shared, state).and_then(|service| look_on(shared, state, &service));
    match looked {
        Ok(true) => return Step::Again,
        Ok(false) => {}
        Err(errno) => {
            shared.counters.failed_thaw_chunks.fetch_add(1, Relaxed);
            shared.counters.last_thaw_errno.store(errno.raw_os_error() as u64, Relaxed);
        }
    }
    let look = &mut state.thaw.look;
    if look.has_found {
        look.delay_ns = 0;
    }
    let delay = backoff(&mut look.delay_ns, LOOK_FIRST_NS, LOOK_LAST_NS);
    let not_before_ns = process::now_ns() + delay.as_nanos() as u64;
    *look = Look { not_before_ns, delay_ns: look.delay_ns, ..Look::default() };
    Step::Later(delay)
}

/// True if there is more to look at.
fn look_on(shared: &Shared, state: &mut State, service: &Service) -> Result<bool, Errno> {
    let is_clean = |chunk| chunk == Chunk::Clean;
    let Some(run) = state.map.next_run(state.thaw.look.next, LOOK_CHUNKS, is_clean) else {
        return Ok(false);
    };
    state.thaw.look.next = run.end;
    if let Some(chunk) = first_written(shared, state, run, service)? {
        state.thaw.look.has_found = true;
        state.thaw.look.next = chunk + 1;
        thaw(shared, state, service, chunk)?;
    }
    Ok(true)
}

/// Makes every written clean chunk live, so that few are left for a freeze to find.
pub(crate) fn thaw_written(shared: &Shared, state: &mut State) -> Result<(), Errno> {
    let mut from = 0;
    while let Some(run) = state.map.next_run(from, usize::MAX, |chunk| chunk == Chunk::Clean) {
        from = run.end;
        let service = serving(shared, state)?;
        if let Some(chunk) = first_written(shared, state, run, &service)? {
            from = chunk + 1;
            thaw_here(shared, state, &service, chunk)?;
        }
    }
    Ok(())
}

/// Makes the shortest runs live until there are few.
pub(crate) fn thaw_short_runs(shared: &Shared, state: &mut State) -> Result<(), Errno> {
    let mut runs: Vec<_> = state.map.runs(|chunk| chunk == Chunk::Clean).collect();
    runs.sort_unstable_by_key(|run| run.len());
    for chunk in runs[..runs.len().saturating_sub(MOST_RUNS)].iter().cloned().flatten() {
        let service = serving(shared, state)?;
        thaw_here(shared, state, &service, chunk)?;
    }
    Ok(())
}

/// Makes all clean chunks live.
pub(crate) fn thaw_all(shared: &Shared, state: &mut State) -> Result<(), Errno> {
    let mut from = 0;
    while let Some(one) = state.map.next_run(from, 1, |chunk| chunk == Chunk::Clean) {
        from = one.end;
        let service = serving(shared, state)?;
        thaw_here(shared, state, &service, one.start)?;
    }
    Ok(())
}

/// Makes clean chunks frozen again: others may read them, and a thaw looks at them.
pub(crate) fn end(shared: &Shared, state: &mut State) {
    if state.map.count(Chunk::Clean) == 0 {
        return;
    }
    let clean: Vec<_> = state.map.runs(|chunk| chunk == Chunk::Clean).collect();
    clean.into_iter().for_each(|run| state.change_all(run, Event::Offer));
    shared.notify(state);
}

fn serving(shared: &Shared, state: &State) -> Result<Arc<Service>, Errno> {
    shared.service(state).ok_or(Errno::NODEV)
}

fn first_written(
    shared: &Shared,
    state: &State,
    run: Range<usize>,
    service: &Service,
) -> Result<Option<usize>, Errno> {
    for (piece, _) in state.pieces(shared.chunk_range(run.start, run.len())) {
        if let Some(address) = service.scanner.first_private(piece)? {
            return Ok(Some((address - shared.range.start) / CHUNK_BYTES));
        }
    }
    Ok(None)
}

/// Like [`thaw`], in a thread of the program's. `BUSY` if that stands on the chunk.
fn thaw_here(
    shared: &Shared,
    state: &mut State,
    service: &Service,
    chunk: usize,
) -> Result<(), Errno> {
    let _blocked = enter(shared.chunk_range(chunk, 1))?;
    thaw(shared, state, service, chunk)
}

fn thaw(shared: &Shared, state: &mut State, service: &Service, chunk: usize) -> Result<(), Errno> {
    let thawing = Thawing::new(shared, service);
    let private = private_pages(shared, state, chunk, MANY_PAGES, &service.scanner)?;
    let thawed = if private > MANY_PAGES {
        thawing.thaw_gently(state, chunk)
    } else {
        thawing.thaw(state, chunk..chunk + 1)
    };
    service.window.close();
    thawed
}

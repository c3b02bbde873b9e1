//! Chunks that nothing was written to stay as they are, and can be told from others at the next freeze.
//!
//! ```text
//!   frozen ──no private page, no reader of the base──▶ clean ─a page is private──▶ thawed
//!      ▲                                                │
//!      └──────────────────── freeze ────────────────────┘
//! ```
//! Marking a chunk clean changes nothing: its mapping stays. A store at the same time makes a private copy, as before
//! and after, and the next look finds the copy: the service thread looks now and then, so that chunks that are written
//! often are live and on huge pages; every freeze to a view looks before and during its pause.

use std::sync::Arc;

use cowslip_sys::Errno;
use cowslip_sys::pagemap::Method;

use super::observe::first_written;
use super::perform::thaw_at_pace;
use crate::arena::chunk::{enter, private_pages};
use crate::arena::state::{Chunk, Event, Shared, State};
use crate::mapping::backing_file::Pages;
use crate::plan::settings::clean::MOST_RUNS;
use crate::plan::task::{Pace, many_pages};
use crate::service::Service;

/// True if changes can be tracked at the promised cost: a look at pages mapped one by one, or at their entries, would
/// take milliseconds a GiB.
pub(crate) fn can_keep(shared: &Shared, service: &Service) -> bool {
    let is_huge = matches!(shared.pages, Pages::HugeTmpfs | Pages::HugeMemfd);
    is_huge && service.scanner.method() == Method::Scan
}

/// Makes every written clean chunk live, so that few are left for a freeze to find.
pub(crate) fn thaw_written(shared: &Shared, state: &mut State) -> Result<(), Errno> {
    let mut from = 0;
    while let Some(run) = state.map.next_run(from, usize::MAX, |chunk| chunk == Chunk::Clean) {
        from = run.end;
        let service = serving(shared, state)?;
        if let Some(chunk) = first_written(shared, state, run, &service.scanner)? {
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
    let private = private_pages(shared, state, chunk, many_pages(), &service.scanner)?;
    let thawed = thaw_at_pace(shared, state, service, chunk..chunk + 1, Pace::new(private));
    service.window.close();
    thawed
}

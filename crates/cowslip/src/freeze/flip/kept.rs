//! Kept chunks in a freeze: private before it, with what was written to them since the last one.
//!
//! ```text
//!        R                              V
//!  0   base + copies, private        reserved
//!  1   empty, access waits           base + copies          moved together
//!  2   empty, access waits           base' = base + copies  the copies written to the file
//!  3   base', private, no copy       base', read only
//! ```
//! Under V nothing changes between 1 and 3: where a copy is, the file gets its content. Nobody else reads
//! the base of a kept chunk (I2). If anything fails before 3, the copies move back to R, newer than
//! whatever of them is in the file (I1, I4).
//!
//! # Safety
//! As in [`super`].

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use super::{Flip, insist};
use crate::arena::state::State;
use crate::arena::store::offset;
use crate::freeze::service::Service;
use crate::freeze::thaw;
use crate::sys::{Errno, memfile, memory};
use crate::units::{VirtRange, page_size_bytes};

/// Moves the pages of `from` to `to`, and `moved_to` with what is moved of `from`. Kept chunks may be several
/// mappings to the kernel: what was frozen at different times has histories of copies of its own.
pub(super) fn move_out(from: VirtRange, to: VirtRange, moved_to: &mut usize) -> Result<(), Errno> {
    // SAFETY: see the module.
    match unsafe { memory::move_pages_out(from, to) } {
        Ok(()) => {
            *moved_to = from.end();
            Ok(())
        }
        Err(Errno::FAULT) if from.len > page_size_bytes() => {
            let (left, right) = thaw::halves(from);
            let target =
                |part: VirtRange| VirtRange::new(to.start + (part.start - from.start), part.len);
            move_out(left, target(left), moved_to)?;
            move_out(right, target(right), moved_to)
        }
        Err(errno) => Err(errno),
    }
}

/// Has the file hold what was written since the last freeze, while every access to R waits.
pub(super) fn settle(flip: &mut Flip<'_>) -> Result<(), Errno> {
    let Flip { shared, state, kept, view, .. } = flip;
    let State { service, tracking, .. } = &mut **state;
    let Some(service) = service.as_ref() else { return Ok(()) };
    let mut pages = 0;
    for piece in kept {
        let shown = VirtRange::new(view.start + (piece.start - shared.range.start), piece.len);
        let mut written = Ok(());
        pages += service.scanner().private_runs(shown, |run| {
            if written.is_err() {
                return;
            }
            let run_in_arena = VirtRange::new(piece.start + (run.start - shown.start), run.len);
            // First: a part of it may be written.
            shared.chunks_of(run_in_arena).for_each(|chunk| tracking.forget(chunk));
            let at = offset(shared.range, run_in_arena);
            // SAFETY: the view is mapped there, and nobody knows it yet.
            written = unsafe { memfile::write_range_at(shared.store.fd(), run, at) };
        })?;
        written?;
    }
    shared.counters.settled_pages.fetch_add(pages, Relaxed);
    Ok(())
}

/// Moves back what was moved: the copies are what the program wrote.
pub(super) fn move_back(flip: &Flip<'_>, service: &Service) {
    let arena = flip.shared.range;
    for piece in &flip.kept {
        let moved =
            piece.intersect(VirtRange::between(arena.start, flip.moved_to.max(arena.start)));
        if moved.is_empty() {
            continue;
        }
        let shown = flip.in_view(moved);
        // Or the move would be an event that somebody has to read.
        insist(|| service.uffd().unregister(shown));
        let mut done = 0;
        let is_back = insist(|| {
            let rest = VirtRange::between(done.max(shown.start), shown.end());
            let place = VirtRange::new(moved.start + (rest.start - shown.start), rest.len);
            if rest.is_empty() { Ok(()) } else { move_out(rest, place, &mut done) }
        });
        if !is_back {
            // To go on would be to lose what the program wrote (I1).
            let _ = std::io::stderr().write_all(
                b"cowslip: the kernel would not move memory back after a freeze that failed: too many \
                  mappings? (vm.max_map_count)\n",
            );
            std::process::abort();
        }
    }
}

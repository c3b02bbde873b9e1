//! Chunks that are private before a freeze, and their private pages: *clean* ones, and, while views or children of earlier
//! freezes live, *frozen* ones.
//!
//! ```text
//!        R                              V                          clean               frozen
//!  0   base + copies, private        reserved
//!  1   empty, access waits           base + copies             moved together, both
//!  2   empty, access waits           base' = base + copies     copies written       chunk with copies written to
//!                                                              to the base          another file, whole
//!  3   base', private, no copy       base', read only
//! ```
//! Under V nothing changes between 1 and 3: where a copy is, the file gets its content. Nothing else reads the base of
//! a clean chunk (I2). The base of a frozen one has readers, and stays. If anything fails before 3, the copies move
//! back to R, newer than any content of theirs in the file (I1, I4).

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::Errno;
use cowslip_sys::units::VirtRange;

use super::plan::Snapshot;
use crate::arena::chunk::{self, fill_base};
use crate::arena::state::Chunk;
use crate::mapping::OwnedRange;
use crate::mapping::backing_file::offset;
use crate::service::Service;

/// Private pages that follow one another: where the view shows them, and where the arena has them.
struct Written {
    shown: OwnedRange,
    in_arena: VirtRange,
}

/// Copies the private pages into files, while every access to R waits.
pub(super) fn copy_to_files(snapshot: &mut Snapshot<'_>) -> Result<(), Errno> {
    let Some(service) = snapshot.service() else { return Ok(()) };
    let mut written = Vec::new();
    let mut pages = 0;
    for piece in &snapshot.private {
        let shown = snapshot.in_view(*piece);
        pages += service.scanner.private_runs(*shown, |run| {
            let place = VirtRange::new(piece.start + (run.start - shown.start), run.len);
            written.extend(snapshot.shared.by_chunk(place).map(|(chunk, in_arena)| {
                let start = run.start + (in_arena.start - place.start);
                let shown = shown.part(VirtRange::new(start, in_arena.len));
                (chunk, Written { shown, in_arena })
            }));
        })?;
    }
    let copied = written.chunk_by(|a, b| a.0 == b.0).try_for_each(|of_chunk| {
        let chunk = of_chunk[0].0;
        // First: a part of it may be written.
        snapshot.state.tracking.forget(chunk);
        let target = match snapshot.state.chunk(chunk) {
            Chunk::Frozen => copy_base(snapshot, &service, chunk)?,
            _ => snapshot.state.map.file(chunk),
        };
        let (arena, file) = (snapshot.shared.range, snapshot.state.files.get(target).fd());
        of_chunk.iter().try_for_each(|(_, Written { shown, in_arena })| {
            shown.write_to(file, offset(arena, *in_arena))
        })
    });
    service.window.close();
    copied?;
    snapshot.part_moved();
    snapshot.shared.counters.copied_in_freeze_pages.fetch_add(pages, Relaxed);
    Ok(())
}

/// Copies the base of a frozen chunk to another file, which becomes the chunk's file with step 3. Returns its number.
fn copy_base(snapshot: &mut Snapshot<'_>, service: &Service, chunk: usize) -> Result<u8, Errno> {
    let Snapshot { shared, state, moved, .. } = snapshot;
    let range = shared.chunk_range(chunk, 1);
    // Step 3 might fail between two parts.
    if state.pieces(range).len() > 1 || state.has_left(range) {
        return Err(Errno::BUSY);
    }
    let target = shared.target(state)?;
    let file = Arc::clone(state.files.get(target));
    fill_base(shared, state, chunk, &file, &service.window, &service.scanner)?;
    moved.push((chunk, target));
    Ok(target)
}

/// Moves the pages of private chunks back, from `start` on: they hold the program's writes.
pub(super) fn move_back(snapshot: &Snapshot<'_>, start: usize) {
    for piece in &snapshot.private {
        let moved = piece.intersect(VirtRange::between(start, snapshot.moved_to.max(start)));
        if moved.is_empty() {
            continue;
        }
        let place = snapshot.shared.piece(moved);
        if chunk::move_back(snapshot.in_view(moved), *place).is_err() {
            // Going on would lose the program's writes (I1).
            let _ = std::io::stderr().write_all(
                b"cowslip: the kernel would not move memory back after a freeze that failed: too many mappings \
                  (vm.max_map_count)\n",
            );
            std::process::abort();
        }
    }
}

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

/// Writes to a clean chunk after a freeze has looked at it and before it moves it away: a test from outside could not
/// hit that moment.
#[cfg(all(test, feature = "failpoints"))]
mod tests {
    use std::time::Duration;

    use crate::arena::Arena;
    use crate::freeze::FreezeMethod;
    use crate::freeze::snapshot::{Snapshot, take};
    use cowslip_sys::Errno;
    use cowslip_sys::failpoints::{Op, fail};
    use cowslip_sys::units::{ByteCount, CHUNK_BYTES, VirtRange};

    const PATIENCE: Duration = Duration::from_secs(60);
    const CHUNK_WORDS: usize = CHUNK_BYTES / 8;

    /// Freezes an arena of ten chunks, two of them live, with copies in two that are clean, while a call fails. Returns
    /// true if it did, and how the freeze was done.
    fn freeze_while(op: Op, pass: u32, errno: Errno) -> Option<(bool, Option<FreezeMethod>)> {
        let arena = Arena::new(ByteCount::mib(32)).unwrap();
        if !arena.track_changes(true) {
            return None;
        }
        let mut words = arena.slice::<u64>(10 * CHUNK_WORDS).unwrap();
        words.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64);
        drop(arena.freeze().unwrap());
        assert!(arena.wait_live(PATIENCE));
        (words[4 * CHUNK_WORDS], words[7 * CHUNK_WORDS]) = (1, 1);

        let shared = arena.shared();
        let mut snapshots = [Snapshot::plan(shared, shared.lock(), true).unwrap()];
        assert_eq!(snapshots[0].private.len(), 3);
        for place in [CHUNK_WORDS, 5 * CHUNK_WORDS + 9, 5 * CHUNK_WORDS + 1025] {
            words[place] = 2;
        }
        let expected = words.to_vec();
        let rule = fail(op, pass, 1, errno);
        let method = take(&mut snapshots).ok();
        let has_failed = rule.is_spent();
        drop(rule);
        assert!(*words == expected, "{op:?} {pass}");
        let [mut snapshot] = snapshots;
        if let Some(method) = method {
            let known = snapshot.state.number_freeze();
            let is_unchanged = |chunk| known.is_unchanged_since(chunk, 1);
            if method == FreezeMethod::Userfaultfd {
                let unchanged: Vec<_> = (0..10).filter(|chunk| is_unchanged(*chunk)).collect();
                assert_eq!(unchanged, [0, 2, 3, 6, 8, 9]);
            } else {
                assert!(!(0..10).any(is_unchanged));
            }
            let generation = snapshot.generation;
            let view = snapshot.into_view(method).unwrap();
            words[5 * CHUNK_WORDS + 10] = 3;
            let start = view.start + (words.range().start - arena.range().start);
            let mut shown = vec![0; expected.len()];
            view.part(VirtRange::new(start, 8 * expected.len()))
                .copy_to(bytemuck::cast_slice_mut(&mut shown));
            assert!(shown == expected, "{op:?} {pass}");
            let mut state = shared.lock();
            state.generations.end_view(generation);
            state.retired_views.push(view);
            shared.notify(&state);
        } else {
            drop(snapshot);
            words[5 * CHUNK_WORDS + 10] = 3;
        }
        assert!(arena.wait_live(PATIENCE), "{op:?} {pass}");
        let now = arena.freeze().unwrap();
        assert_eq!(words[5 * CHUNK_WORDS + 10], 3);
        assert!(now.slice(&words) == &words[..] && words[..CHUNK_WORDS] == expected[..CHUNK_WORDS]);
        Some((has_failed, method))
    }

    /// The rules that make calls fail hold for the whole process.
    #[test]
    fn copies_made_just_before_the_cut_in_a_process_of_their_own() {
        let this = std::env::current_exe().unwrap();
        let mut alone = std::process::Command::new(this);
        let ran = alone.args(["--ignored", "just_before_the_cut_are_in_it"]).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    #[ignore = "runs in a process of its own"]
    fn copies_made_just_before_the_cut_are_in_it_or_still_there_whatever_fails() {
        for (op, at_least) in [
            (Op::Mremap, 5),
            (Op::PagemapScan, 3),
            (Op::Pwrite, 3),
            (Op::UffdRegister, 5),
            (Op::TaskStart, 1),
            (Op::UffdWake, 1),
        ] {
            for errno in [Errno::NOMEM, Errno::AGAIN] {
                let mut calls = 0;
                loop {
                    let Some((has_failed, method)) = freeze_while(op, calls, errno) else { return };
                    if !has_failed {
                        assert_eq!(method, Some(FreezeMethod::Userfaultfd));
                        break;
                    }
                    calls += 1;
                }
                assert!(calls >= at_least, "{op:?}: {calls}");
            }
        }
    }
}

//! The step itself: all of the snapshots at one instant.

use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::memory::{Advice, Sharing};
use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::uffd::RegisterMode;
use cowslip_sys::{Errno, scheduling};

use super::plan::{OPERATION, Snapshot, not_mapped};
use super::{private, without_userfaultfd};
use crate::arena::chunk::move_pages;
use crate::freeze::method::FreezeMethod;
use crate::mapping::backing_file::Pages;
use crate::retry::retry_until_ok;
use crate::timing::Stopwatch;

const THIS_THREAD: i32 = 0;

/// Freezes all of `snapshots` at one instant.
pub(crate) fn take(snapshots: &mut [Snapshot<'_>]) -> Result<FreezeMethod> {
    let can_move = snapshots.iter().all(|snapshot| {
        snapshot.service().is_some_and(|service| !service.has_failed())
            && snapshot.shared.pages != Pages::Hugetlb
            && !process::stands_in(snapshot.shared.range)
    });
    // A handler could touch memory that waits for this very thread.
    let blocked = can_move.then(BlockedSignals::enter);
    let watch = Stopwatch::start();
    // Live and clean chunks alone can be mapped over.
    let has_frozen = snapshots.iter().any(Snapshot::has_frozen);
    let mapped_over = |snapshots: &mut [Snapshot<'_>]| {
        snapshots.iter_mut().try_for_each(Snapshot::thaw_clean)?;
        without_userfaultfd::map_over(snapshots).map(|()| FreezeMethod::WithoutUserfaultfd)
    };
    let result = if can_move {
        match move_and_map(snapshots) {
            Ok(mapped) => mapped.map(|()| FreezeMethod::Userfaultfd),
            Err(error) if has_frozen || error.kind() == ErrorKind::OutOfMemory => Err(error),
            // Live memory is still live: the other way may work.
            Err(_) => mapped_over(snapshots),
        }
    } else if has_frozen {
        Err(Error::from_errno(OPERATION, Errno::BUSY)
            .because("an earlier freeze is read, and this thread's stack is in the arena"))
    } else {
        mapped_over(snapshots)
    };
    let ns = watch.elapsed_ns();
    drop(blocked);
    if result.is_err() {
        snapshots.iter_mut().for_each(Snapshot::undo);
    }
    for snapshot in snapshots.iter_mut() {
        let counters = &snapshot.shared.counters;
        if result.is_err() {
            counters.failed_freezes.fetch_add(1, Relaxed);
            continue;
        }
        counters.freezes.fetch_add(1, Relaxed);
        counters
            .plain_freezes
            .fetch_add(u64::from(matches!(result, Ok(FreezeMethod::WithoutUserfaultfd))), Relaxed);
        counters.last_freeze_ns.store(ns, Relaxed);
        counters.longest_freeze_ns.fetch_max(ns, Relaxed);
        counters.stalled(ns);
        counters.frozen_chunks.store(snapshot.state.not_live() as u64, Relaxed);
    }
    result
}

/// Moves the pages away, and maps everything privately. If it is not moved, all is as before.
fn move_and_map(snapshots: &mut [Snapshot<'_>]) -> Result<Result<()>> {
    let pieces: usize = snapshots.iter().map(|snapshot| snapshot.pieces.len()).sum();
    let holds = pieces > 1 || snapshots.iter().any(|snapshot| !snapshot.private.is_empty());
    let service = snapshots.iter().find_map(Snapshot::service).filter(|_| holds);
    let act = |snapshots: &mut [Snapshot<'_>]| {
        move_all(snapshots, holds).map(|()| map_all(snapshots, holds))
    };
    let Some(service) = service else { return act(snapshots) };
    service.outside(|| {
        // Waiting threads must not wait for this one's turn as well.
        let is_urgent = service.is_crowded.load(Relaxed)
            && scheduling::is_ordinary()
            && scheduling::set_urgent(THIS_THREAD, true).is_ok();
        let answer = act(snapshots);
        if is_urgent {
            let _ = scheduling::set_urgent(THIS_THREAD, false);
        }
        answer
    })
}

/// Moves the pages away, and copies private pages into the files under them; if it `holds` threads, every access waits
/// from then on. If that fails, all is as before.
fn move_all(snapshots: &mut [Snapshot<'_>], holds: bool) -> Result<()> {
    let moved = try_move(snapshots)
        .and_then(|()| snapshots.iter_mut().try_for_each(private::copy_to_files))
        .and_then(|()| if holds { hold_live(snapshots) } else { Ok(()) });
    if moved.is_err() {
        for snapshot in snapshots.iter() {
            private::move_back(snapshot, snapshot.shared.range.start);
            let_go(snapshot, holds);
        }
    }
    moved.map_err(|errno| Error::from_errno(OPERATION, errno).on(snapshots[0].shared.range))
}

fn try_move(snapshots: &mut [Snapshot<'_>]) -> Result<(), Errno> {
    let waits = RegisterMode::MISSING | RegisterMode::MINOR;
    for snapshot in snapshots.iter() {
        let service = snapshot.service().ok_or(Errno::NODEV)?;
        // Without its private pages such memory is not what the program wrote.
        snapshot.private.iter().try_for_each(|piece| service.hold.register(*piece, waits))?;
    }
    for snapshot in snapshots {
        for (piece, _) in &snapshot.pieces {
            let (from, to) = (*snapshot.shared.piece(*piece), snapshot.in_view(*piece));
            if snapshot.is_private(*piece) {
                move_pages(from, to, &mut snapshot.moved_to)?;
            } else {
                from.move_pages_to(to)?;
            }
        }
    }
    Ok(())
}

/// Makes every access to live memory, which has few pages left, wait.
fn hold_live(snapshots: &[Snapshot<'_>]) -> Result<(), Errno> {
    for snapshot in snapshots {
        let service = snapshot.service().ok_or(Errno::NODEV)?;
        for (piece, _) in snapshot.pieces.iter().filter(|(piece, _)| !snapshot.is_private(*piece)) {
            service.hold.register(*piece, RegisterMode::MISSING | RegisterMode::MINOR)?;
            snapshot.shared.piece(*piece).advise(Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// Ends the waits that a freeze made.
fn let_go(snapshot: &Snapshot<'_>, holds: bool) {
    let Some(service) = snapshot.service().filter(|_| holds) else { return };
    let waits = service.hold.read_events().map_or(0, |events| events.faults);
    snapshot.shared.counters.waits.fetch_add(waits, Relaxed);
    for (piece, _) in &snapshot.pieces[snapshot.done..] {
        // Not registered is fine: the piece is a shared mapping again, and live, or has its pages back.
        _ = retry_until_ok(|| service.hold.unregister(*piece));
    }
    _ = retry_until_ok(|| service.hold.wake(snapshot.shared.range));
}

/// Maps everything privately and wakes the waiting threads.
fn map_all(snapshots: &mut [Snapshot<'_>], holds: bool) -> Result<()> {
    let mapped = try_map(snapshots);
    for snapshot in snapshots.iter() {
        if mapped.is_err() {
            // The rest is as it was.
            if let Some((first, prot)) = snapshot.pieces.get(snapshot.done) {
                // Before Linux 6.12 a mapping that `vm.overcommit_memory=2` refuses leaves none in its place.
                if !snapshot.is_private(*first) {
                    let live = || snapshot.shared.map_live(&snapshot.state, *first, *prot);
                    let _ = retry_until_ok(live);
                }
                private::move_back(snapshot, first.start);
            }
        }
        let_go(snapshot, holds);
    }
    mapped.map_err(not_mapped)
}

fn try_map(snapshots: &mut [Snapshot<'_>]) -> Result<(), Errno> {
    for snapshot in snapshots.iter_mut() {
        let mut done = 0;
        let mapped = snapshot.pieces.iter().try_for_each(|(piece, prot)| {
            let file = snapshot.state.files.get(snapshot.file_of(*piece));
            snapshot.shared.piece(*piece).map(file.fd(), Sharing::Private, *prot)?;
            snapshot.shared.mark_base(&snapshot.state, *piece);
            done += 1;
            Ok(())
        });
        snapshot.mark_frozen(done);
        mapped?;
    }
    Ok(())
}

/// Writes to a clean chunk after a freeze has looked at it and before it moves it away: a test from outside could not
/// hit that moment.
#[cfg(all(test, feature = "failpoints"))]
mod tests {
    use std::time::Duration;

    use crate::arena::Arena;
    use crate::freeze::FreezeMethod;
    use crate::freeze::snapshot::Snapshot;
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
        let method = super::take(&mut snapshots).ok();
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

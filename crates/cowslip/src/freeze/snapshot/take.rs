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
    let began = process::now_ns();
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
    let ns = process::now_ns() - began;
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
            if let Some((first, _)) = snapshot.pieces.get(snapshot.done) {
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

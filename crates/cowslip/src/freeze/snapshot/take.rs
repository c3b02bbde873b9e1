//! The step itself: all of the snapshots at one instant.

use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::Errno;
use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::memory::Sharing;
use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::uffd::RegisterMode;

use super::plan::{OPERATION, Snapshot, not_mapped};
use super::{private, without_userfaultfd};
use crate::arena::chunk::move_pages;
use crate::freeze::colocate::Colocate;
use crate::freeze::method::FreezeMethod;
use crate::mapping::backing_file::Pages;
use crate::retry::retry_until_ok;

/// Freezes all of `snapshots` at one instant.
pub(crate) fn take(snapshots: &mut [Snapshot<'_>]) -> Result<FreezeMethod> {
    let can_move = snapshots.iter().all(|snapshot| {
        snapshot.service().is_some_and(|service| !service.health.has_failed())
            && snapshot.shared.pages != Pages::Hugetlb
            && !process::stands_in(snapshot.shared.range)
    });
    // A handler could touch memory that waits for this very thread.
    let blocked = can_move.then(BlockedSignals::enter);
    let colocate = can_move.then(|| Colocate::begin(snapshots));
    let began = process::now_ns();
    // Live and clean chunks alone can be mapped over.
    let has_frozen = snapshots.iter().any(Snapshot::has_frozen);
    let mapped_over = |snapshots: &mut [Snapshot<'_>]| {
        snapshots.iter_mut().try_for_each(Snapshot::thaw_clean)?;
        without_userfaultfd::map_over(snapshots).map(|()| FreezeMethod::WithoutUserfaultfd)
    };
    let result = if can_move {
        match move_all(snapshots) {
            Ok(()) => map_all(snapshots).map(|()| FreezeMethod::Userfaultfd),
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
    drop(colocate);
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

/// Moves the pages away, so that every access waits, and copies private pages into the files under them. If that fails,
/// all is as before.
fn move_all(snapshots: &mut [Snapshot<'_>]) -> Result<()> {
    let moved = try_move(snapshots);
    // For all of them, even if one failed.
    let ended = snapshots.iter().filter_map(Snapshot::service);
    let ended = ended.map(|service| service.health.end_moves()).fold(Ok(()), Result::and);
    let moved =
        moved.and(ended).and_then(|()| snapshots.iter_mut().try_for_each(private::copy_to_files));
    if moved.is_err() {
        for snapshot in snapshots.iter() {
            let Some(service) = snapshot.service() else { continue };
            private::move_back(snapshot, snapshot.shared.range.start);
            for (piece, holder) in snapshot.held(&service) {
                // Not registered is fine: the piece is a shared mapping again, and live, or has its pages back.
                _ = retry_until_ok(|| holder.unregister(piece));
                _ = retry_until_ok(|| holder.wake(piece));
            }
        }
    }
    moved.map_err(|errno| Error::from_errno(OPERATION, errno).on(snapshots[0].shared.range))
}

fn try_move(snapshots: &mut [Snapshot<'_>]) -> Result<(), Errno> {
    for snapshot in snapshots.iter() {
        let service = snapshot.service().ok_or(Errno::NODEV)?;
        service.begin_moves()?;
        for (piece, holder) in snapshot.held(&service) {
            holder.register(piece, RegisterMode::MISSING | RegisterMode::MINOR)?;
        }
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

/// Maps everything privately and wakes the waiting threads.
fn map_all(snapshots: &mut [Snapshot<'_>]) -> Result<()> {
    let mapped = try_map(snapshots);
    for snapshot in snapshots.iter() {
        let Some(service) = snapshot.service() else { continue };
        if mapped.is_err() {
            // The rest is as it was.
            if let Some((first, _)) = snapshot.pieces.get(snapshot.done) {
                private::move_back(snapshot, first.start);
            }
            for (piece, holder) in snapshot.held(&service) {
                _ = retry_until_ok(|| holder.unregister(piece));
            }
        }
        _ = retry_until_ok(|| service.uffd.wake(snapshot.shared.range));
        if !snapshot.private.is_empty() {
            _ = retry_until_ok(|| service.hold.wake(snapshot.shared.range));
        }
        // The view took the registration along; a reader of it must not wait for any thread.
        for (piece, _) in &snapshot.pieces {
            _ = retry_until_ok(|| service.uffd.unregister(*snapshot.in_view(*piece)));
        }
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

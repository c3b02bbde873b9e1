#![allow(unsafe_code)]
//! A freeze without userfaultfd: one mapping over the other.
//!
//! # Safety
//! As in [`super`].

use cowslip_sys::Errno;
use cowslip_sys::error::{Error, Result};
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::units::{VirtRange, page_size_bytes};

use super::plan::{OPERATION, Snapshot, not_mapped};
use crate::arena::backing_file::{Pages, offset, pool_too_small};

/// Puts one mapping over the other, for each piece. They are made elsewhere first: what the kernel or the hugetlb pool,
/// which pays for every copy beforehand, has to refuse it refuses before anything changes.
pub(super) fn map_over(snapshots: &mut [Snapshot<'_>]) -> Result<()> {
    let mut ready = Vec::new();
    for snapshot in snapshots.iter() {
        for (piece, prot) in &snapshot.pieces {
            match private_elsewhere(snapshot, *piece, *prot) {
                Ok(place) => ready.push(place),
                Err(errno) => {
                    let error = match snapshot.shared.pages {
                        Pages::Hugetlb => pool_too_small(Error::from_errno(OPERATION, errno)),
                        _ => not_mapped(errno),
                    };
                    give_up(ready);
                    return Err(error.on(*piece));
                }
            }
        }
    }
    let mut ready = ready.into_iter();
    for snapshot in snapshots.iter_mut() {
        let mut done = 0;
        let moved = snapshot.pieces.iter().try_for_each(|(piece, _)| {
            let place = ready.as_slice()[0];
            // SAFETY: see the module.
            unsafe { memory::move_mapping(place, *piece) }?;
            ready.next();
            done += 1;
            Ok(())
        });
        snapshot.mark_frozen(done);
        if let Err(errno) = moved {
            give_up(ready);
            return Err(not_mapped(errno));
        }
    }
    Ok(())
}

fn give_up(places: impl IntoIterator<Item = VirtRange>) {
    for place in places {
        // SAFETY: made for a freeze that failed, and known to nobody else.
        let _ = unsafe { memory::unmap(place) };
    }
}

/// A private mapping of a piece, elsewhere. For hugetlb the pool has set pages aside for its copies.
fn private_elsewhere(
    snapshot: &Snapshot<'_>,
    piece: VirtRange,
    prot: Prot,
) -> Result<VirtRange, Errno> {
    let at = offset(snapshot.shared.range, piece);
    let file = snapshot.state.file_at(piece.start).fd();
    let is_hugetlb = snapshot.shared.pages == Pages::Hugetlb;
    let place = if is_hugetlb {
        memory::map_file_reserved(piece.len, file, at, Sharing::Private)?
    } else {
        memory::reserve_apart(piece.len, page_size_bytes())?
    };
    // SAFETY: the place was made just now, for this alone.
    let made = unsafe {
        if is_hugetlb {
            memory::protect(place, prot)
        } else {
            memory::map_file(place, file, at, Sharing::Private, prot)
        }
    };
    made.inspect_err(|_| give_up([place]))?;
    if snapshot.state.vma_map.is_base(piece.start) {
        // Best effort: without it more memory is held.
        // SAFETY: no content changes.
        let _ = unsafe { memory::advise(place, Advice::NoHugePage) };
    }
    Ok(place)
}

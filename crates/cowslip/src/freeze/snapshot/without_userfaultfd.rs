//! A freeze without userfaultfd: one mapping over the other.

use cowslip_sys::Errno;
use cowslip_sys::error::{Error, Result};
use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::units::VirtRange;

use super::plan::{OPERATION, Snapshot, not_mapped};
use crate::mapping::OwnSpace;
use crate::mapping::backing_file::{Pages, pool_too_small};

/// Puts one mapping over the other, for each piece. They are made elsewhere first: a refusal by the kernel, or by the
/// hugetlb pool, which pays for every copy beforehand, comes before anything changes.
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
                    return Err(error.on(*piece));
                }
            }
        }
    }
    let mut ready = ready.into_iter();
    for snapshot in snapshots.iter_mut() {
        let mut done = 0;
        let moved = snapshot.pieces.iter().try_for_each(|(piece, _)| {
            let place = &mut ready.as_mut_slice()[0];
            place.move_front_to(*snapshot.shared.piece(*piece))?;
            ready.next();
            done += 1;
            Ok(())
        });
        snapshot.mark_frozen(done);
        moved.map_err(not_mapped)?;
    }
    Ok(())
}

/// A private mapping of a piece, elsewhere.
fn private_elsewhere(
    snapshot: &Snapshot<'_>,
    piece: VirtRange,
    prot: Prot,
) -> Result<OwnSpace, Errno> {
    let file = snapshot.state.file_at(piece.start);
    let place = OwnSpace::private_of(file, snapshot.shared.piece(piece), prot)?;
    if snapshot.state.vma_map.is_base(piece.start) {
        // Best effort: without it more memory is held.
        let _ = place.advise(Advice::NoHugePage);
    }
    Ok(place)
}

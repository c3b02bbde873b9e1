//! Arenas with page frames that the kernel or a device knows, by registrations that nothing saw in time to move the
//! memory out of the arena first (`io_uring_register(2)`, RDMA, vfio).
//!
//! ```text
//!   parent   R ──MAP_SHARED──▶ file      as before: what the device writes is what the program sees
//!   child    R ──MAP_PRIVATE─▶ copies    made before the fork, as the kernel copies pinned pages at a fork
//! ```
//! Nothing live is frozen, and nothing frozen is thawed: both would leave the device with frames that are not the
//! program's. Memory frozen before is shared with children as ever; the kernel copies its pinned pages for them.

use cowslip_sys::Errno;
use cowslip_sys::memory::Prot;
use cowslip_sys::units::{VirtRange, page_size_bytes};

use crate::arena::state::{Chunk, Shared, State};
use crate::mapping::OwnSpace;

/// A child's copies of the memory of a pinned arena.
#[derive(Debug, Default)]
pub(super) struct Copies(Vec<Copied>);

#[derive(Debug)]
struct Copied {
    range: VirtRange,
    copy: OwnSpace,
}

impl Copies {
    /// Copies all that is in use and live. Threads that write meanwhile are not held up, as in any fork.
    pub(super) fn make(shared: &Shared, state: &State) -> Result<Self, Errno> {
        let mut copies = Self::default();
        for run in state.map.runs(|chunk| chunk == Chunk::Live) {
            let whole = shared.chunk_range(run.start, run.len());
            for span in state.vma_map.within(whole).filter(|span| span.usage.is_used()) {
                let copy = OwnSpace::reserve_apart(span.range.len, page_size_bytes())?;
                let place = *copy;
                copies.0.push(Copied { range: span.range, copy });
                place.map_anonymous(Prot::RW)?;
                place
                    .with_bytes(|target| shared.copy_out(state, span.range, target))
                    .map_err(|_| Errno::NOMEM)?;
                place.protect(span.prot)?;
            }
        }
        Ok(copies)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the child: puts the copies where their content belongs.
    pub(super) fn place(&mut self, shared: &Shared, state: &mut State) {
        for Copied { range, mut copy } in self.0.drain(..) {
            let prot = state.vma_map.within(range).next().map_or(Prot::RW, |span| span.prot);
            // The fork left live memory out: nothing is mapped there.
            match copy.move_front_to(*shared.piece(range)) {
                Ok(()) => shared.set_detached(state, range, prot),
                Err(_) => _ = copy.leak(),
            }
        }
    }
}

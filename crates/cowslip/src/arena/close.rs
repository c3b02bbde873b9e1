//! Closing an arena: it hands out no more memory, and gives back address space that it does not use.

use cowslip_sys::error::{During, Result};
use cowslip_sys::memfile;
use cowslip_sys::memory::Prot;

use super::state::{Role, Shared, State};
use crate::mapping::backing_file::offset;
use crate::memory::vma_map::Usage;

const OPERATION: &str = "give an arena's address space back";

impl Shared {
    /// Unmaps free memory, for good, and old views. Nothing is kept for a later freeze.
    pub(crate) fn close(&self, state: &mut State) -> Result<()> {
        state.is_closed = true;
        state.retired_views.clear();
        let free: Vec<_> = state.vma_map.free_within(self.range).collect();
        for range in free {
            self.piece(range).unmap().during(OPERATION)?;
            state.vma_map.set(range, Usage::Foreign, Prot::NONE);
            if state.role == Role::Reader {
                continue;
            }
            let parts: Vec<_> = state.by_file(range).collect();
            for part in parts {
                let (file, start) = (state.file_at(part.start).fd(), offset(self.range, part));
                if memfile::data_at_or_after(file, start, start + part.len as u64) != Ok(None) {
                    let _ = self.give_back(state, part);
                }
            }
        }
        Ok(())
    }
}

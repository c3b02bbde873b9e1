//! The view of a snapshot: kept for a reader, or dropped.

use cowslip_sys::error::{During, Result};
use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::units::VirtRange;

use super::plan::Snapshot;
use crate::arena::inheritance::set_inherited;
use crate::freeze::method::FreezeMethod;
use crate::mapping::OwnSpace;
use crate::mapping::backing_file::offset;
use crate::plan::settings::thaw::VIEW_STEP_BYTES;

impl Snapshot<'_> {
    /// Keeps the view for a reader in this process.
    pub(crate) fn into_view(mut self, method: FreezeMethod) -> Result<OwnSpace> {
        self.state.generations.begin_view(self.generation);
        // If it fails, a fork that goes around us shares memory that a thaw will change.
        let _ = set_inherited(self.shared, &self.state, Advice::DontFork);
        let mapped: Result<()> = (|| {
            let is_mapped_anew = |piece: VirtRange| {
                let chunk = self.shared.chunks_of(piece).start;
                method == FreezeMethod::WithoutUserfaultfd || self.copied.contains(&chunk)
            };
            for (piece, _) in &self.pieces {
                if is_mapped_anew(*piece) {
                    let file = self.state.file_at(piece.start).fd();
                    let at = offset(self.shared.range, *piece);
                    self.in_view(*piece)
                        .map_file(file, at, Sharing::Shared, Prot::READ)
                        .during("map a view")?;
                }
            }
            // Memory allocated later was free at the freeze, and shows zeroes. Writable mappings stay so: taking that
            // away would walk every entry of the page tables, and callers get no more than a shared reference.
            let make_readable =
                |part| self.view.part(part).protect(Prot::READ).during("make a view readable");
            let mut rest = **self.view;
            for (piece, prot) in &self.pieces {
                let shown = *self.in_view(*piece);
                let gap = VirtRange::between(rest.start, shown.start);
                let guarded = if prot.contains(Prot::READ) { VirtRange::default() } else { shown };
                for part in [gap, guarded].into_iter().filter(|part| !part.is_empty()) {
                    make_readable(part)?;
                }
                rest = VirtRange::between(shown.end(), rest.end());
            }
            if rest.is_empty() { Ok(()) } else { make_readable(rest) }
        })();
        if let Err(error) = mapped {
            self.state.generations.end_view(self.generation);
            if self.discard_view() {
                self.shared.notify(&self.state);
            }
            return Err(error);
        }
        Ok(std::mem::take(&mut self.view))
    }

    /// Drops the view. True if a part of that is left to the background: the page tables of a large view go bit by bit.
    pub(crate) fn discard_view(&mut self) -> bool {
        let view = std::mem::take(&mut self.view);
        if view.is_empty() {
            return false;
        }
        let moved_bytes: usize = self.pieces.iter().map(|(piece, _)| piece.len).sum();
        let is_left = moved_bytes > VIEW_STEP_BYTES && self.service().is_some();
        if is_left {
            self.state.retired_views.push(view);
        }
        is_left
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        if self.discard_view() {
            self.shared.notify(&self.state);
        }
    }
}

//! A view that ends while references into it live on: the parts that they show become a copy.
//!
//! ```text
//!   view  ──MAP_SHARED──▶ file (base)        copy  ──MAP_PRIVATE──▶ its own pages, under the same addresses
//! ```
//!
//! Each part is filled elsewhere and then moved over the view in one step (`mremap`), with the bytes that the view
//! shows there: a thread that reads it meanwhile sees the same before and after. No thread writes to either.

use cowslip_sys::error::{During, Result};
use cowslip_sys::memory::Prot;
use cowslip_sys::process;
use cowslip_sys::units::{VirtRange, page_size_bytes};

use super::Frozen;
use crate::mapping::{OwnSpace, OwnedRange};
use crate::{Error, ErrorKind};

const OPERATION: &str = "copy parts of a view";

/// Parts of a view that has ended, for reading, under the addresses that they had in it.
#[derive(Debug)]
pub struct FrozenCopy {
    _parts: Vec<OwnSpace>,
}

impl Frozen {
    /// Ends the view. Its content of `parts`, given by the arena's addresses, stays where it is, as a copy: for
    /// interpreters with programs that hold on to parts of a view. The arena may be frozen again at once.
    ///
    /// # Errors
    /// The view, which is as before, with the kernel's reason; [`ErrorKind::Busy`] in a child of the process that froze it;
    /// [`ErrorKind::Usage`] if it shows nothing, as the arena was closed and empty.
    ///
    /// # Panics
    /// If a part is not of the arena.
    #[allow(clippy::result_large_err, reason = "the view goes back to the caller")]
    pub fn into_copy(mut self, parts: &[VirtRange]) -> Result<FrozenCopy, (Self, Error)> {
        if self.pid != process::pid() {
            let error = Error::new(ErrorKind::Busy, OPERATION);
            return Err((self, error.because("the view is of this process' parent")));
        }
        if self.view.is_empty() && !parts.is_empty() {
            let error = Error::new(ErrorKind::Usage, OPERATION);
            return Err((
                self,
                error.because("the arena was closed and empty, so that it shows nothing"),
            ));
        }
        let parts = whole_pages(parts, self.handle.shared.unit());
        if let Err(error) = parts.iter().try_for_each(|part| self.copy_in_place(*part)) {
            return Err((self, error));
        }
        let mut rest = std::mem::take(&mut self.view);
        let mut at = self.handle.shared.range.start;
        let keep = |part: VirtRange| {
            drop(rest.split_front(part.start - at));
            at = part.end();
            rest.split_front(part.len)
        };
        Ok(FrozenCopy { _parts: parts.into_iter().map(keep).collect() })
    }

    /// Makes the view show a copy of `part`, which is whole pages.
    fn copy_in_place(&self, part: VirtRange) -> Result<()> {
        let mut copy = OwnSpace::reserve_apart(part.len, page_size_bytes()).during(OPERATION)?;
        self.fill(part, *copy)?;
        copy.protect(Prot::READ).during(OPERATION)?;
        copy.move_front_to(self.shown(part)).during(OPERATION)
    }

    /// Fills `copy`, which is reserved, with the view's content of `part`.
    fn fill(&self, part: VirtRange, copy: OwnedRange) -> Result<()> {
        copy.map_anonymous(Prot::RW).during(OPERATION)?;
        // Memory that was not in use at the freeze shows zeroes.
        for piece in &self.layout {
            let piece = piece.range.intersect(part);
            if piece.is_empty() {
                continue;
            }
            let place = VirtRange::new(copy.start + (piece.start - part.start), piece.len);
            let read = copy.part(place).with_bytes(|content| self.read_base(piece, content));
            read.during(OPERATION)?;
        }
        Ok(())
    }
}

/// The pages of `page_bytes` that `parts` touch: in order, apart. Only whole pages can replace parts of a hugetlb
/// mapping.
fn whole_pages(parts: &[VirtRange], page_bytes: usize) -> Vec<VirtRange> {
    let mut pages: Vec<VirtRange> =
        parts.iter().map(|part| part.outer_aligned(page_bytes)).collect();
    pages.sort_by_key(|part| part.start);
    let mut apart: Vec<VirtRange> = Vec::with_capacity(pages.len());
    for part in pages.into_iter().filter(|part| !part.is_empty()) {
        match apart.last_mut().filter(|last| part.start <= last.end()) {
            Some(last) => *last = VirtRange::between(last.start, last.end().max(part.end())),
            None => apart.push(part),
        }
    }
    apart
}

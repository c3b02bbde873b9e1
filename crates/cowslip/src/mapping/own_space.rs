//! Address space that the core has for itself.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use cowslip_sys::memory::{self, Prot, Sharing};
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{BorrowedFd, Errno};

use super::{ArenaPiece, OwnSpace, OwnedRange};
use crate::mapping::backing_file::{BackingFile, Pages};

impl Deref for OwnSpace {
    type Target = OwnedRange;

    fn deref(&self) -> &OwnedRange {
        &self.0
    }
}

impl OwnSpace {
    /// Reserves space among the program's mappings.
    pub(crate) fn reserve(len: usize, align: usize) -> Result<Self, Errno> {
        memory::reserve(len, align).map(|range| Self(OwnedRange(range)))
    }

    /// Reserves space far from the program's mappings.
    pub(crate) fn reserve_apart(len: usize, align: usize) -> Result<Self, Errno> {
        memory::reserve_apart(len, align).map(|range| Self(OwnedRange(range)))
    }

    /// Reserves exactly `range`, if nothing is mapped there (else `EXIST`).
    pub(crate) fn reserve_at(range: VirtRange) -> Result<Self, Errno> {
        memory::reserve_at(range).map(|()| Self(OwnedRange(range)))
    }

    /// Maps a file of hugetlb pages: the pool sets pages aside for all of the mapping.
    pub(crate) fn of_hugetlb(
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
        sharing: Sharing,
    ) -> Result<Self, Errno> {
        memory::map_file_reserved(len, file, at, sharing).map(|range| Self(OwnedRange(range)))
    }

    /// Maps the place of a piece in `file` elsewhere, privately.
    pub(crate) fn private_of(
        file: &BackingFile,
        piece: ArenaPiece,
        prot: Prot,
    ) -> Result<Self, Errno> {
        if file.pages == Pages::Hugetlb {
            let mapping = Self::of_hugetlb(piece.len, file.fd(), piece.offset, Sharing::Private)?;
            return mapping.protect(prot).map(|()| mapping);
        }
        let mapping = Self::reserve_apart(piece.len, page_size_bytes())?;
        mapping.map_file(file.fd(), piece.offset, Sharing::Private, prot).map(|()| mapping)
    }

    /// Takes the first `len` bytes off.
    pub(crate) fn split_front(&mut self, len: usize) -> Self {
        let front = self.first(len);
        self.0 = OwnedRange(VirtRange::between(front.end(), self.end()));
        Self(front)
    }

    /// Moves the first bytes, one mapping, over all of `to`, and no longer owns them. They hold the content of `to`.
    pub(crate) fn move_front_to(&mut self, to: OwnedRange) -> Result<(), Errno> {
        self.first(to.len).move_to(to)?;
        self.split_front(to.len).leak();
        Ok(())
    }

    /// Unmaps it, and says if the kernel refused.
    pub(crate) fn unmap(self) -> Result<(), Errno> {
        self.leak().unmap()
    }

    /// Leaves it mapped for good.
    pub(crate) fn leak(self) -> OwnedRange {
        ManuallyDrop::new(self).0
    }
}

impl Drop for OwnSpace {
    fn drop(&mut self) {
        if !self.is_empty() {
            // If it fails the addresses stay taken.
            let _ = self.0.unmap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_inside() {
        let page = page_size_bytes();
        let space = OwnSpace::reserve(4 * page, page).unwrap();
        let (whole, end) = (*space, space.end());
        assert_eq!(*whole.part(VirtRange::new(end, 0)), VirtRange::new(end, 0));
        for (start, len) in
            [(space.start - page, page), (end - page, 2 * page), (end, usize::MAX - end)]
        {
            let beyond = std::panic::catch_unwind(|| whole.part(VirtRange { start, len }));
            assert!(beyond.is_err(), "{start:#x} {len:#x}");
        }
    }

    #[test]
    fn what_is_split_off_is_apart_from_the_rest() {
        let page = page_size_bytes();
        let mut space = OwnSpace::reserve(3 * page, page).unwrap();
        space.map_anonymous(Prot::RW).unwrap();
        space.with_bytes(|bytes| bytes.fill(7));
        let whole = **space;
        let front = space.split_front(page);
        assert_eq!((**front, space.start), (VirtRange::new(whole.start, page), front.end()));
        drop(front);
        space.move_front_to(space.part(VirtRange::new(whole.end() - page, page))).unwrap();
        assert!(space.with_bytes(|bytes| bytes == vec![7; page]));
    }
}

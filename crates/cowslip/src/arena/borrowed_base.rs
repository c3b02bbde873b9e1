//! The base of borrowed chunks: see [`super::borrowed`].

use std::cell::Cell;
use std::ops::Range;

use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::reserved_fd::{FileIdentity, ReservedFd, same_file};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd, memfile};

use super::readers::Pin;
use crate::mapping::backing_file::{BackingFile, Pages, offset, read_file, take_huge_page};
use crate::mapping::{ArenaPiece, OwnSpace};
use crate::memory::vma_map::{Usage, VmaMap};

/// `since` of a borrowed chunk: no reader of the arena's own generations reads its base.
pub(crate) const UNREAD: u64 = u64::MAX;

/// The file that borrowed chunks map, at the offsets that they have in the arena.
#[derive(Debug)]
pub(crate) struct BorrowedBase {
    /// The part of the arena that lies in the file.
    extent: VirtRange,
    /// Maps that part of the file, for the kernel alone.
    view: OwnSpace,
    file: ReservedFd,
    identity: FileIdentity,
    /// The data that was last found in it, in bytes: finding the end of a run takes time for each of its pages.
    known_data: Cell<(u64, u64)>,
    /// Chunks that are still borrowed though the own file holds their base. They become live together.
    filled: Cell<(usize, usize)>,
    /// Last: mappings of the base are dropped before it.
    pin: Pin,
}

impl BorrowedBase {
    /// A base in `file`, which is for reading only and holds `extent` of the arena `arena`.
    pub(crate) fn new(
        file: OwnedFd,
        pin: Pin,
        arena: VirtRange,
        extent: VirtRange,
    ) -> Result<Self, Errno> {
        let identity = FileIdentity::from_fd(file.as_fd())?;
        let file = ReservedFd::hold(file);
        let view = OwnSpace::reserve_apart(extent.len, CHUNK_BYTES)?;
        let (known_data, filled) = (Cell::default(), Cell::default());
        let base = Self { extent, view, file, identity, known_data, filled, pin };
        let at = offset(arena, extent);
        base.view.map_file(base.file.as_fd(), at, Sharing::Shared, Prot::READ)?;
        base.view.advise(Advice::DontDump)?;
        base.set_inherited(Advice::DontFork)?;
        Ok(base)
    }

    /// Sets whether children inherit the pin and the view of the base, as all that get a mapping of it must.
    pub(crate) fn set_inherited(&self, advice: Advice) -> Result<(), Errno> {
        self.pin.set_inherited(advice)?;
        self.view.advise(advice)
    }

    /// `BADF` if the program has closed our descriptor or put another file in its place.
    pub(super) fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        if same_file(self.file.as_fd(), self.identity) {
            Ok(self.file.as_fd())
        } else {
            Err(Errno::BADF)
        }
    }

    /// Maps a piece of the arena, which is not in use yet, to the base, privately.
    pub(crate) fn map(&self, piece: ArenaPiece, prot: Prot) -> Result<(), Errno> {
        piece.map(self.fd()?, Sharing::Private, prot)?;
        // Like frozen memory: children have it if they are told of the arena.
        piece.advise(Advice::DontFork)
    }

    /// Copies the base's data of `part`, which lies in one chunk, to `own`. There it is a hole, or was filled before:
    /// its holes stay holes.
    pub(crate) fn fill(
        &self,
        own: &BackingFile,
        arena: VirtRange,
        part: VirtRange,
    ) -> Result<(), Errno> {
        let file = self.fd()?;
        let (mut at, start) = (offset(arena, part), offset(arena, part));
        let end = start + part.len as u64;
        let view = self.view.start + (part.start - self.extent.start);
        let shown =
            |at: u64, len| self.view.part(VirtRange::new(view + (at - start) as usize, len));
        let mut is_first = true;
        while let Some((from, to)) = self.next_data(file, arena, at, end)? {
            if std::mem::take(&mut is_first) && own.pages == Pages::HugeMemfd {
                take_huge_page(own, arena, part)?;
            }
            let source = shown(from, (to - from) as usize);
            // If its source is not mapped, write(2) fills the fresh page with zeroes first.
            let _ = source.advise(Advice::PopulateRead);
            source.write_to(own.fd(), from)?;
            at = to;
        }
        if is_first {
            return Ok(());
        }
        // Mapped pages count as memory of the program.
        shown(start, part.len).advise(Advice::DontNeed)
    }

    /// Like [`memfile::next_data`], for the base, which does not change.
    pub(super) fn next_data(
        &self,
        file: BorrowedFd<'_>,
        arena: VirtRange,
        at: u64,
        end: u64,
    ) -> Result<Option<(u64, u64)>, Errno> {
        let (from, to) = self.known_data.get();
        if from <= at && at < to.min(end) {
            return Ok(Some((at, to.min(end))));
        }
        let whole = offset(arena, self.extent) + self.extent.len as u64;
        let found = memfile::next_data(file, at, whole)?;
        self.known_data.set(found.unwrap_or_default());
        Ok(found.filter(|(from, _)| *from < end).map(|(from, to)| (from, to.min(end))))
    }

    /// The run of chunks that are filled in the own file.
    pub(crate) fn filled(&self) -> Range<usize> {
        let (first, end) = self.filled.get();
        first..end
    }

    pub(super) fn set_filled(&self, chunk: usize) {
        let Range { start, end } = self.filled();
        self.filled.set(if chunk == end { (start, end + 1) } else { (chunk, chunk + 1) });
    }

    /// Forgets the filled chunks: the own file is about to be used for something else there, or no longer this process'
    /// concern.
    pub(crate) fn forget_filled(&self) {
        self.filled.set((0, 0));
    }

    /// True if memory left the arena where it lies, and children inherit it for good.
    pub(crate) fn is_left(&self, vma_map: &VmaMap) -> bool {
        vma_map.within(self.extent).any(|span| span.usage == Usage::Left)
    }

    /// True if the base is known to have data everywhere: its file takes as much memory as the base is long, and has
    /// nothing else. Three calls, however long it is.
    pub(crate) fn is_dense(&self, arena: VirtRange) -> Result<bool, Errno> {
        let file = self.fd()?;
        let start = offset(arena, self.extent);
        let end = start + self.extent.len as u64;
        let is_all = memfile::data_at_or_after(file, 0, start)?.is_none()
            && memfile::data_at_or_after(file, end, u64::MAX)?.is_none();
        Ok(is_all && memfile::allocated_bytes(file)? >= end - start)
    }

    /// The runs of chunks in `run` in which the base has data: at most `most`, since each is a mapping. The last has
    /// all of the rest.
    pub(crate) fn chunks_with_data(
        &self,
        arena: VirtRange,
        run: VirtRange,
        most: usize,
    ) -> Result<Vec<VirtRange>, Errno> {
        let file = self.fd()?;
        let (start, end) = (offset(arena, run), offset(arena, run) + run.len as u64);
        let mut runs: Vec<VirtRange> = Vec::new();
        let mut at = start;
        // Does not ask where data ends: that takes time for each of its pages.
        while let Some(data) = memfile::data_at_or_after(file, at, end)? {
            let chunk = data - (data - start) % CHUNK_BYTES as u64;
            let place = VirtRange::new(run.start + (chunk - start) as usize, CHUNK_BYTES);
            let are_many = runs.len() >= most;
            match runs.last_mut() {
                Some(last) if last.end() == place.start => last.len += place.len,
                Some(last) if are_many => {
                    *last = VirtRange::between(last.start, run.end());
                    break;
                }
                _ => runs.push(place),
            }
            at = chunk + CHUNK_BYTES as u64;
        }
        Ok(runs)
    }

    /// Copies the base's data of `part` to `content`, which is all zeroes.
    pub(crate) fn read(
        &self,
        arena: VirtRange,
        part: VirtRange,
        content: &mut [u8],
    ) -> Result<bool, Errno> {
        read_file(self.fd()?, offset(arena, part), content)
    }

    /// In a reader: closes the descriptors; its mappings stay.
    pub(crate) fn renounce(&self) {
        self.file.close_early();
        self.pin.close_early();
    }

    /// In a forked child.
    pub(crate) fn in_child(&self) {
        self.forget_filled();
    }
}

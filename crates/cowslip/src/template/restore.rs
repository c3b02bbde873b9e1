//! Turns a template into an independent arena.
//!
//! ```text
//!   template's base ◀─MAP_PRIVATE── R     usable at once; chunks are borrowed ([`crate::arena::borrowed`])
//!         │              when the arena is waited for or frozen: base and private pages into its own file
//!   own file        ◀─MAP_SHARED─── R     an ordinary live arena; the template's base is free
//! ```
//! Without userfaultfd nothing could hold writers off while their pages are copied, so everything is copied first.

use cowslip_sys::error::{During, Error, ErrorKind, Result, errno_of};
use cowslip_sys::memory::Prot;
use cowslip_sys::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip_sys::{AsFd, Errno};

use super::base::Base;
use super::file::File;
use super::layout::{Inherit, Region};
use super::{Place, Template};
use crate::arena::borrowed_base::{BorrowedBase, UNREAD};
use crate::arena::readers::Pin;
use crate::arena::state::{Chunk, Event, Shared, State};
use crate::arena::{Arena, ArenaBuilder, Pages};
use crate::thaw::serve;

const OPERATION: &str = "make an arena of a template";
/// Each is a mapping; the kernel allows 65,530 by default.
const MOST_RUNS: usize = 1024;

impl Template {
    /// A builder for an arena with room for the template's content, for [`Self::restore`]: as large as the arena that
    /// the template was made from, at the same addresses or anywhere.
    ///
    /// # Errors
    /// An error of the kernel, if the program closed the template's descriptor.
    pub fn arena_builder(&self, place: Place) -> Result<ArenaBuilder> {
        let len_bytes = self.base.content.arena_len().during(OPERATION)?;
        let builder = Arena::builder(ByteCount(len_bytes));
        Ok(match place {
            Place::Anywhere => builder,
            Place::Original => builder.at(self.base.layout.origin()),
        })
    }

    /// Makes an arena with this content, usable at once: it may be read, written, protected, forked and frozen like any
    /// other. Its memory is allocated according to the template's regions; those that clones would find
    /// [fresh](Inherit::Fresh) are zeroes.
    ///
    /// Next to nothing is copied: nothing of a chunk of 2 MiB that lies completely in copied regions. The arena maps the
    /// template's base privately. The first write to a page copies 4 KiB, and a chunk with 1 MiB of written pages becomes the
    /// arena's own. The rest stays so until
    /// * [`Arena::wait_live`], from which on the service thread copies the base and the pages written meanwhile to a
    ///   file of the arena's own, chunk by chunk: a writer that meets it waits for its chunk's private pages, and in the
    ///   end the arena is on huge pages and independent,
    /// * [`Arena::freeze`], which does the same first, in the calling thread: it takes at most as long as copying the
    ///   arena once.
    ///
    /// A [fork](crate::fork()) costs the same as always; the children share the template's base. The template, and the
    /// process that it came from, may go at any time: its memory stays while it is borrowed. While less than 256 MiB of
    /// memory are left nothing is copied, as borrowed memory costs none. Chunks without data in the base are not
    /// borrowed. In other chunks, a page that the base lacks takes memory of the base when it is first read.
    ///
    /// Without userfaultfd everything is copied before this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the builder's capacity is too small, [`ErrorKind::Unsupported`] if regions are
    /// [shared](Inherit::Shared) by clones or the arena would be on hugetlb pages; those of [`ArenaBuilder::build`];
    /// [`ErrorKind::OutOfMemory`] if the kernel is out of mappings.
    ///
    /// ```
    /// use std::time::Duration;
    /// use cowslip::{Arena, Place, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// let mut table = arena.slice::<u64>(1_000_000)?;
    /// table.fill(7);
    /// let template = arena.freeze()?.into_template()?;
    ///
    /// // In this process, or in another that received the template:
    /// let again = template.restore(template.arena_builder(Place::Anywhere)?)?;
    /// let place = template.range_in(&again, table.value_range());
    /// // SAFETY: no other slice has this memory.
    /// let mut mine = unsafe { again.adopt_slice::<u64>(place) }?;
    /// mine[0] = 8; // at once
    /// assert_eq!((mine[0], mine[1], table[0], mine.len()), (8, 7, 7, 1_000_000));
    /// drop((template, table, arena));
    /// assert!(again.wait_live(Duration::from_secs(60))); // free of everybody
    /// assert_eq!(again.freeze()?.slice(&mine)[..2], [8, 7]);
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn restore(&self, builder: ArenaBuilder) -> Result<Arena> {
        let base = &*self.base;
        let pieces =
            base.layout.regions().iter().map(|region| (base.layout.offset(*region), *region));
        let pieces: Vec<_> = pieces
            .map(|(at, region)| (VirtRange::new(at as usize, region.range.len), region.prot))
            .collect();
        self.restore_pieces(builder, &pieces)
    }

    /// Works like [`Self::restore`], but allocates only these parts, given from the arena's start.
    pub(crate) fn restore_pieces(
        &self,
        builder: ArenaBuilder,
        pieces: &[(VirtRange, Prot)],
    ) -> Result<Arena> {
        let base = &*self.base;
        if base.layout.has(Inherit::Shared) {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION).because(
                "a region is shared by the template's clones, and an arena shares nothing",
            ));
        }
        let arena = builder.build()?;
        let shared = arena.shared();
        if shared.pages == Pages::Hugetlb {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .because("a file of hugetlb pages cannot be written to")
                .advise("restore it with transparent huge pages"));
        }
        let needed = ByteCount(base.layout.file_len());
        if needed.0 > shared.range.len as u64 {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .on(shared.range)
                .because(format!("the template needs a capacity of {needed}")));
        }
        let can_borrow = serve::begin(shared);
        let mut state = shared.lock();
        hand_out(pieces, shared, &mut state)?;
        let token = base.token_to_offer()?;
        let file = base.content.in_one(&base.layout)?;
        let lender = borrow(base, file, &token, shared.range).during(OPERATION)?;
        let borrowed = match can_borrow {
            true => to_borrow(base, shared.range, &lender).during(OPERATION)?,
            false => Vec::new(),
        };
        map(base, shared, &mut state, &lender, &borrowed).map_err(|errno| {
            Error::from_errno(OPERATION, errno)
                .on(shared.range)
                .because("there are too many mappings, or no memory is left for a copy")
                .advise("raise vm.max_map_count, or free memory")
        })?;
        if state.map.count(Chunk::Borrowed) > 0 {
            state.borrowed_base = Some(lender);
            state.keeps_borrowed = true;
            shared.notify(&state);
        }
        drop(state);
        Ok(arena)
    }

    /// The range in an arena [restored](Self::restore) from this that corresponds to `range` in the arena that it was
    /// made from.
    ///
    /// # Panics
    /// If `range` is not in the template.
    pub fn range_in(&self, arena: &Arena, range: VirtRange) -> VirtRange {
        let layout = &self.base.layout;
        assert!(layout.extent().covers(range), "{range} is not in the template");
        VirtRange::new(arena.range().start + (range.start - layout.origin()), range.len)
    }
}

/// The addresses of a region in the arena.
fn place(base: &Base, arena: VirtRange, region: &Region) -> VirtRange {
    VirtRange::new(arena.start + base.layout.offset(*region) as usize, region.range.len)
}

fn hand_out(pieces: &[(VirtRange, Prot)], shared: &Shared, state: &mut State) -> Result<()> {
    for (piece, prot) in pieces {
        let range = VirtRange::new(shared.range.start + piece.start, piece.len);
        if !shared.allocate_filled(state, range, *prot)? {
            return Err(Error::new(ErrorKind::Corrupt, OPERATION)
                .on(range)
                .because("the template has a region that an arena cannot hand out"));
        }
    }
    Ok(())
}

/// A handle on the base that belongs to the arena.
fn borrow(base: &Base, file: &File, token: &Pin, arena: VirtRange) -> Result<BorrowedBase, Errno> {
    let again =
        |fd: cowslip_sys::BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|error| errno_of(&error));
    let pin = Pin::new(again(token.fd())?)?;
    let extent = base.layout.extent();
    let here = VirtRange::new(arena.start + (extent.start - base.layout.origin()), extent.len);
    BorrowedBase::new(again(file.fd()?.as_fd())?, pin, arena, here)
}

/// Runs of chunks that consist only of copied regions.
fn whole_chunks(base: &Base, arena: VirtRange) -> Vec<VirtRange> {
    let copied = base.layout.regions().iter().filter(|region| region.inherit == Inherit::Copied);
    let mut runs: Vec<VirtRange> = Vec::new();
    for range in copied.map(|region| place(base, arena, region)) {
        match runs.last_mut() {
            Some(last) if last.end() == range.start => last.len += range.len,
            _ => runs.push(range),
        }
    }
    let inner = runs.into_iter().map(|run| run.inner_aligned(CHUNK_BYTES));
    inner.filter(|run| !run.is_empty()).collect()
}

/// The runs to map from the base: a chunk that is only holes can belong to the arena from the beginning.
fn to_borrow(
    base: &Base,
    arena: VirtRange,
    lender: &BorrowedBase,
) -> Result<Vec<VirtRange>, Errno> {
    let whole_chunks = whole_chunks(base, arena);
    if lender.is_dense(arena)? {
        return Ok(whole_chunks);
    }
    let mut runs = Vec::new();
    for whole in whole_chunks {
        let most = MOST_RUNS.saturating_sub(runs.len()).max(1);
        runs.extend(lender.chunks_with_data(arena, whole, most)?);
    }
    Ok(runs)
}

/// Maps the base in the runs that are `borrowed`, and copies the copied regions elsewhere.
fn map(
    base: &Base,
    shared: &Shared,
    state: &mut State,
    lender: &BorrowedBase,
    borrowed: &[VirtRange],
) -> Result<(), Errno> {
    for run in borrowed {
        for (piece, prot) in state.pieces(*run) {
            lender.map(shared.piece(piece), prot)?;
        }
    }
    for region in base.layout.regions().iter().filter(|region| region.inherit == Inherit::Copied) {
        let range = place(base, shared.range, region);
        let mut at = range.start;
        let first = borrowed.partition_point(|run| run.end() <= range.start);
        let here = borrowed[first..].iter().map(|run| run.intersect(range));
        for part in here.take_while(|part| !part.is_empty()) {
            copy(shared, state, lender, VirtRange::between(at, part.start))?;
            at = part.end();
        }
        copy(shared, state, lender, VirtRange::between(at, range.end()))?;
    }
    for chunk in borrowed.iter().flat_map(|run| shared.chunks_of(*run)) {
        state.change(chunk, Event::Borrow);
        state.map.set_since(chunk, UNREAD);
    }
    Ok(())
}

fn copy(
    shared: &Shared,
    state: &State,
    lender: &BorrowedBase,
    range: VirtRange,
) -> Result<(), Errno> {
    let mut parts = shared.by_chunk(range).filter(|(_, part)| !part.is_empty());
    parts.try_for_each(|(_, part)| lender.fill(state.file_at(part.start), shared.range, part))
}

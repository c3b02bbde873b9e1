//! The files of an arena: one for each generation that is read, and one more for live memory.
//!
//! ```text
//!   file 0   ████████████████   live at the fork: frozen, mapped privately by parent and children
//!   file 1   ··█··██···█·····   live since then: moved out of file 0, or used for the first time
//!   R        000 1 00 11 0000   each chunk knows its file; its offset is its place in the arena, in every file
//! ```
//! * A file with private chunks, or with places that were moved out of, may have readers. Chunks become live in it only
//!   by a thaw, which comes after the last reader. A child therefore has no mapping of anything that its parent writes
//!   later.
//! * A reader that [renounces](crate::raw::RawArena::renounce) the arena, because it is about to have fewer rights,
//!   marks the files that it maps as *exposed*. It may end the mapping that counts it, and make others longer: no chunk
//!   becomes live in such a file ever again. Its frozen chunks move out instead of being thawed, and it is closed when
//!   none maps it.
//! * A *vacated* place keeps its content while there are generations that read it. Then it is punched out, or its file
//!   is closed if no chunk maps it any more.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsRawFd, Errno};

use super::file_table::{FrozenPiece, Vacated};
use super::state::{Chunk, Event, Shared, State};
use crate::mapping::OwnedRange;
use crate::mapping::backing_file::{BackingFile, Pages, copy_data, offset};

impl Shared {
    /// The number of a file without readers, for chunks that become live while others are read.
    ///
    /// # Errors
    /// The kernel's, if it gives no other file; `NFILE` if there are [`MOST_FILES`].
    pub(crate) fn target(&self, state: &mut State) -> Result<u8, Errno> {
        if let Some(target) = state.files.target {
            return Ok(target);
        }
        let writable = state.files.all().map(|(number, _)| number);
        let writable = writable.filter(|number| state.is_writable(*number));
        // The fuller one, for fewer runs of one file.
        let target = match writable.max_by_key(|number| state.map.in_file(*number)) {
            Some(target) => target,
            None => {
                let first = Arc::clone(state.file_at(self.range.start));
                let another = first.another(self.range.len as u64)?;
                let added = state.files.add(Arc::new(another)).ok_or(Errno::NFILE)?;
                self.count_files(state);
                added
            }
        };
        state.files.target = Some(target);
        Ok(target)
    }

    /// Before free space is handed out: makes chunks without memory in use map a file without readers. Those of hugetlb
    /// stay in theirs, at a place that no reader maps.
    ///
    /// # Errors
    /// See [`Self::target`].
    pub(crate) fn place_new(&self, state: &mut State, range: VirtRange) -> Result<(), Errno> {
        let has_readers = state.not_live() > 0 || state.files.has_vacated();
        if !has_readers && !state.files.has_exposed() {
            return Ok(());
        }
        let is_new = |state: &State, chunk: usize| match state.chunk(chunk) {
            Chunk::FreePrivate => true,
            Chunk::Live => {
                state.vma_map.is_unused(self.chunk_range(chunk, 1))
                    && !state.is_writable(state.map.file(chunk))
            }
            _ => false,
        };
        let has_views = state.generations.view_count() > 0;
        let chunks = self.chunks_of(range);
        let mut at = chunks.start;
        while let Some(first) = (at..chunks.end).find(|chunk| is_new(state, *chunk)) {
            let end = (first..chunks.end).find(|chunk| !is_new(state, *chunk));
            at = end.unwrap_or(chunks.end);
            match self.target(state) {
                Ok(target) if has_views => {
                    (first..at).for_each(|chunk| self.vacate(state, chunk, target));
                }
                Ok(target) => state.map.set_file(first..at, target),
                // A reader cannot make a mapping of hugetlb pages longer, to see others of its file.
                Err(_) if self.pages == Pages::Hugetlb && !has_views => {}
                Err(errno) => return Err(errno),
            }
            for (piece, prot) in state.pieces(self.chunk_range(first, at - first)) {
                self.map_live(state, piece, prot)?;
            }
            for chunk in first..at {
                if state.chunk(chunk) == Chunk::FreePrivate {
                    state.change(chunk, Event::HandOut);
                }
            }
            self.wake_if_live(state);
        }
        Ok(())
    }

    /// The file that a chunk moves to instead of becoming live in its own, which is exposed; `None` if it is not. A partial
    /// chunk stays: a part of it is live there already, and moves after the next fork.
    ///
    /// # Errors
    /// See [`Self::target`].
    pub(crate) fn other_file(&self, state: &mut State, chunk: usize) -> Result<Option<u8>, Errno> {
        let is_exposed = state.files.get(state.map.file(chunk)).is_exposed();
        if !is_exposed || state.chunk(chunk) == Chunk::Partial {
            return Ok(None);
        }
        let target = self.target(state)?;
        if state.chunk(chunk) != Chunk::Borrowed {
            return Ok(Some(target));
        }
        // Nothing maps the place that its content will have.
        self.punch_in(state.files.get(target), self.chunk_range(chunk, 1))?;
        if let Some(base) = &state.borrowed_base {
            base.forget_filled();
        }
        self.vacate(state, chunk, target);
        Ok(None)
    }

    /// Notes that a chunk maps `target` from here on. The place that it mapped before may still have readers.
    pub(crate) fn vacate(&self, state: &mut State, chunk: usize, target: u8) {
        let file = state.map.file(chunk);
        if state.chunk(chunk).has_base() {
            let since = state.map.since(chunk);
            let until = state.generations.youngest_view().unwrap_or(0);
            state.files.vacated.push(Vacated { file, chunk, since, until });
            self.count_vacated(state);
        } else if state.chunk(chunk) == Chunk::Clean {
            state.files.abandon(file, chunk);
        }
        state.map.set_file(chunk..chunk + 1, target);
    }

    /// Gathers all that a view shows in one of the arena's files, for readers that get one: content of others is copied
    /// to its place there. Returns `None` if readers have those places in each file.
    pub(crate) fn gather(
        &self,
        state: &mut State,
        layout: &[FrozenPiece],
        shown: impl Fn(VirtRange) -> OwnedRange,
    ) -> Result<Option<Arc<BackingFile>>, Errno> {
        let chunks = |piece: &FrozenPiece| self.chunks_of(piece.range);
        let mut best = None;
        for (number, file) in state.files.all() {
            let is_here = |piece: &&FrozenPiece| Arc::ptr_eq(&piece.file, file);
            let there: Vec<usize> =
                layout.iter().filter(|piece| !is_here(piece)).flat_map(chunks).collect();
            let is_taken = |place: &Vacated| place.file == number && there.contains(&place.chunk);
            let is_mapped = |chunk: &usize| state.map.file(*chunk) == number;
            let is_better = best.as_ref().is_none_or(|(_, fewest, _)| there.len() < *fewest);
            let is_free =
                || !state.files.vacated.iter().any(is_taken) && !there.iter().any(is_mapped);
            let is_safe = there.is_empty() || !file.is_exposed();
            if is_better && is_safe && is_free() {
                best = Some((number, there.len(), Arc::clone(file)));
            }
        }
        let Some((number, _, home)) = best else { return Ok(None) };
        home.check_identity()?;
        for piece in layout.iter().filter(|piece| !Arc::ptr_eq(&piece.file, &home)) {
            for (chunk, part) in self.by_chunk(piece.range) {
                self.punch_in(&home, part)?;
                copy_data(&piece.file, &home, offset(self.range, part), shown(part))?;
                // The copy is given back after the readers that it is made for.
                let since = state.map.since(chunk);
                state.files.vacated.push(Vacated { file: number, chunk, since, until: 0 });
            }
        }
        Ok(Some(home))
    }

    /// Copies all that a view shows to a file of its own. Takes as long as the view is large: the view keeps what it
    /// shows, and the caller holds no lock.
    pub(crate) fn gather_apart(
        &self,
        layout: &[FrozenPiece],
        shown: impl Fn(VirtRange) -> OwnedRange,
    ) -> Result<Arc<BackingFile>, Errno> {
        let first = layout.first().ok_or(Errno::INVAL)?;
        let home = first.file.another(self.range.len as u64)?;
        for piece in layout {
            for (_, part) in self.by_chunk(piece.range) {
                copy_data(&piece.file, &home, offset(self.range, part), shown(part))?;
            }
        }
        Ok(Arc::new(home))
    }

    /// Gives back the places of readers that are gone. True if there were any. Readers are the views, and other
    /// processes, which read generations up to `read`.
    pub(crate) fn release_unread(&self, state: &mut State, read: Option<u64>) -> bool {
        let before = state.files.vacated.len();
        let mut gone = Vec::new();
        let State { map, generations, files, .. } = &mut *state;
        files.vacated.retain(|place| {
            let is_read = read.is_some_and(|read| place.since <= read)
                || generations.has_view_of(place.since, place.until);
            // A move that failed half-way left a part of the chunk mapped from there.
            let stays = is_read || map.get(place.chunk) == Chunk::Partial;
            if !stays {
                gone.push(*place);
            }
            stays
        });
        for Vacated { file, chunk, .. } in gone {
            let is_kept =
                state.files.vacated.iter().any(|kept| (kept.file, kept.chunk) == (file, chunk));
            // Files that are closed below need no call for each place.
            if state.map.in_file(file) > 0 && state.map.file(chunk) != file && !is_kept {
                self.punch_unshown(state, file, self.chunk_range(chunk, 1));
            }
        }
        self.close_unused_files(state);
        self.count_vacated(state);
        state.files.vacated.len() < before
    }

    /// Gives back a place of a chunk that maps another file. Memory that ever left is still mapped from it: by this process,
    /// or by children that inherited it before it was unmapped here.
    fn punch_unshown(&self, state: &State, file: u8, place: VirtRange) {
        let mut at = place.start;
        let mut left: Vec<_> = state.vma_map.left_within(place).collect();
        left.reverse();
        let ends = left.into_iter().chain([VirtRange::new(place.end(), 0)]);
        for shown in ends {
            let part = VirtRange::between(at, shown.start);
            at = shown.end();
            if !part.is_empty() {
                // If it fails, the place goes with the file.
                let _ = self.punch_in(state.files.get(file), part);
            }
        }
    }

    /// Updates the counters that tell outside observers the files' descriptors.
    fn count_files(&self, state: &State) {
        let descriptors = || state.files.all().map(|(_, file)| file.fd().as_raw_fd() as u64);
        let first = descriptors().min().unwrap_or(0);
        let bits = descriptors().filter_map(|fd| 1u64.checked_shl(u32::try_from(fd - first).ok()?));
        self.counters.file_descriptors.store(bits.fold(0, |all, bit| all | bit), Relaxed);
        self.counters.file_descriptor.store(first, Relaxed);
    }

    fn count_vacated(&self, state: &State) {
        self.counters.vacated_chunks.store(state.files.vacated.len() as u64, Relaxed);
    }

    fn close_unused_files(&self, state: &mut State) {
        for number in 0..state.files.slots.len() as u8 {
            let is_vacated = state.files.vacated.iter().any(|place| place.file == number);
            let is_used = state.map.in_file(number) > 0 || state.files.target == Some(number);
            if !is_used && !is_vacated {
                state.files.slots[usize::from(number)] = None;
            }
        }
        while state.files.slots.last().is_some_and(Option::is_none) {
            state.files.slots.pop();
        }
        self.count_files(state);
    }
}

impl State {
    /// True if a file has no readers: no private chunk maps it, it has no vacated place, and no reader has exposed it.
    fn is_writable(&self, number: u8) -> bool {
        let is_vacated = || self.files.vacated.iter().any(|place| place.file == number);
        let is_exposed = || self.files.get(number).is_exposed();
        self.map.private_in_file(number) == 0 && !is_exposed() && !is_vacated()
    }
}

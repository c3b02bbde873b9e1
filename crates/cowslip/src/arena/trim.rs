//! Parts of a huge page that a program gives back leave the file.
//!
//! ```text
//!   a part is given back ──▶ zeroed, kept ── an eighth is kept ──▶ hold writers ──▶ punch what is zero still ──▶ let go
//!          └──── the chunk is on base pages ──▶ punched
//! ```
//! A page that was given back may be in use again, unnoticed, as it is mapped. Its content decides, while no store to
//! the chunk can complete: a page of zeroes and a hole are the same to the program. The kernel splits the huge page at
//! the first hole. Memory that a device may be writing to is left alone ([`super::io`]).
//!
//! The call that gives the eighth back trims the chunk: a program that never forks has no service thread, and other
//! threads that write to the chunk wait for one look at 2 MiB at most. If that fails, it is done in the background
//! ([`crate::plan::density`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::memory::Prot;
use cowslip_sys::uffd::{self, RegisterMode, Uffd};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{Errno, memfile};

use super::chunk::{enter, hold_writers, write_protect};
use super::residency::map_resident;
use super::state::{Chunk, Shared, State};
use crate::arena::own_memory;
use crate::mapping::backing_file::{BackingFile, Pages, offset};
use crate::memory::density::PageSet;
use crate::memory::vma_map::Usage;
use crate::plan::density::is_worth_splitting;
use crate::retry::retry_until_ok;
use crate::service::FEATURES;
use crate::timing::Stopwatch;

/// The largest page that is looked at.
const LOOK_BYTES: usize = 4096;

impl Shared {
    pub(crate) fn is_thp(&self) -> bool {
        matches!(self.pages, Pages::HugeTmpfs | Pages::HugeMemfd)
    }

    /// True if a part of a chunk may be punched out without a huge page being lost.
    fn is_on_base_pages(&self, state: &State, chunk: usize) -> bool {
        self.pages == Pages::Base
            || state.vma_map.base_chunks.contains(chunk)
            || state.density.is_split(chunk)
    }

    /// Makes a part of a run of live chunks read as zeroes, and gives pages of it back where that is worthwhile.
    pub(crate) fn discard_live(&self, state: &mut State, part: VirtRange) -> Result<(), Errno> {
        self.clean_whole(state, part)?;
        self.edges(part)
            .into_iter()
            .try_for_each(|(chunk, edge)| self.discard_part(state, chunk, edge))
    }

    /// Like [`Self::discard_live`], for memory that is free from here on. If it fails, the memory is cleaned when it is
    /// handed out again.
    pub(crate) fn release_live(&self, state: &mut State, part: VirtRange) {
        self.learn_use(state, part);
        let _ = self.clean_whole(state, part);
        for (chunk, edge) in self.edges(part) {
            self.release_part(state, chunk, edge);
        }
    }

    /// Punches out the whole chunks of `part` at once.
    fn clean_whole(&self, state: &mut State, part: VirtRange) -> Result<(), Errno> {
        let whole = part.inner_aligned(CHUNK_BYTES);
        if whole.is_empty() {
            return Ok(());
        }
        self.clean(state, whole)?;
        self.chunks_of(whole).for_each(|chunk| state.density.forget(chunk));
        Ok(())
    }

    /// The parts of `part` that are less than a chunk: at most the first and the last.
    fn edges(&self, part: VirtRange) -> Vec<(usize, VirtRange)> {
        self.by_chunk(part).filter(|(_, edge)| edge.len < CHUNK_BYTES).collect()
    }

    /// Makes a part of a live chunk read as zeroes, and gives its pages back if enough of the chunk was given back by now.
    pub(super) fn discard_part(
        &self,
        state: &mut State,
        chunk: usize,
        part: VirtRange,
    ) -> Result<(), Errno> {
        if self.is_on_base_pages(state, chunk) {
            return self.punch(state, part);
        }
        let pages = PageSet::from_part(self.chunk_range(chunk, 1).start, part);
        if is_worth_splitting(pages.count()) {
            self.punch(state, part)?
        } else {
            self.clean(state, part)?
        }
        self.keep(state, chunk, pages);
        Ok(())
    }

    /// Like [`Self::discard_part`], for memory that is free from here on: its content may stay until it is handed out.
    fn release_part(&self, state: &mut State, chunk: usize, part: VirtRange) {
        if self.is_on_base_pages(state, chunk) {
            let _ = self.punch(state, part);
        } else {
            self.keep(state, chunk, PageSet::from_part(self.chunk_range(chunk, 1).start, part));
        }
    }

    fn keep(&self, state: &mut State, chunk: usize, pages: PageSet) {
        if self.is_thp() && is_worth_splitting(state.density.keep(chunk, pages)) {
            // If it fails the pages stay, as zeroes.
            let _ = self.trim(state, chunk);
        }
    }

    fn punch(&self, state: &State, part: VirtRange) -> Result<(), Errno> {
        state.by_file(part).try_for_each(|part| self.punch_in(state.file_at(part.start), part))
    }

    /// Punches `part` out of a file.
    pub(crate) fn punch_in(&self, file: &BackingFile, part: VirtRange) -> Result<(), Errno> {
        file.check_identity()?;
        memfile::punch_hole(file.fd(), offset(self.range, part), part.len as u64)
    }

    /// Gives back the kept pages of a live chunk that are free or still zero, if they are enough of it.
    pub(crate) fn trim(&self, state: &mut State, chunk: usize) -> Result<(), Errno> {
        let may_be_known = state.must_keep_frames()
            || state.ask_before_thaw.is_some_and(|asks| asks())
            || page_size_bytes() > LOOK_BYTES
            // This thread would wait for itself.
            || own_memory::is_in(self);
        if state.chunk(chunk) != Chunk::Live || may_be_known {
            return Err(Errno::BUSY);
        }
        let kept = state.density.take_kept(chunk);
        let range = self.chunk_range(chunk, 1);
        let file = Arc::clone(state.file_at(range.start));
        file.check_identity()?;
        // Most of the pages in use again are found while no thread waits.
        let idle = self.idle_pages(state, range, kept)?;
        if !is_worth_splitting(idle.iter().map(|run| run.len / page_size_bytes()).sum()) {
            return Ok(());
        }
        // This thread would wait for itself.
        let _blocked = enter(range)?;
        let service = self.service(state);
        let own = match service {
            Some(_) => None,
            None => {
                let fd = uffd::open_reserved()?;
                Some(Uffd::new(fd, FEATURES)?)
            }
        };
        let guard = own.as_ref().or(service.as_ref().map(|service| &service.uffd));
        let guard = guard.ok_or(Errno::NODEV)?;
        let watch = Stopwatch::start();
        let pieces = state.pieces(range);
        let split = || {
            let trimmed = (|| {
                for (piece, _) in &pieces {
                    guard.register(*piece, RegisterMode::WP)?;
                    hold_writers(guard, service.as_deref(), *piece, true)?;
                }
                let idle = self.idle_pages(state, range, kept)?;
                idle.iter().try_for_each(|run| self.punch_in(&file, *run))?;
                // The kernel fills a huge page with zeroes instead if it cannot split it now, as it has just come.
                let is_there = |run: &VirtRange| {
                    let at = offset(self.range, *run);
                    memfile::data_at_or_after(file.fd(), at, at + run.len as u64)
                };
                let stays = idle.first().map_or(Ok(None), is_there)?.is_some();
                if stays { Err(Errno::AGAIN) } else { Ok(()) }
            })();
            for (piece, _) in &pieces {
                // This removes the protection, but does not wake threads that wait for that (I6).
                if retry_until_ok(|| guard.unregister(*piece)).is_err() {
                    let _ = write_protect(guard, *piece, false);
                }
                let _ = retry_until_ok(|| guard.wake(*piece));
            }
            trimmed
        };
        let trimmed = match &service {
            Some(service) => service.outside(split),
            None => split(),
        };
        self.counters.stalled(watch.elapsed_ns());
        if trimmed.is_err() {
            // It is tried again in the background.
            state.density.keep(chunk, kept);
        } else {
            state.density.set_split(chunk);
            self.keep_small(state, chunk);
            // A split unmaps the pages that stay.
            for span in state.vma_map.within(range) {
                if span.usage == Usage::Used && span.prot.contains(Prot::READ) {
                    map_resident(self, &file, span.range);
                }
            }
            self.counters.split_chunks.fetch_add(1, Relaxed);
        }
        trimmed
    }

    /// The runs of those of the pages `kept` that are free, or hold nothing but zeroes at this moment.
    fn idle_pages(
        &self,
        state: &State,
        chunk: VirtRange,
        kept: PageSet,
    ) -> Result<Vec<VirtRange>, Errno> {
        let mut runs: Vec<VirtRange> = Vec::new();
        for page in kept.pages(chunk.start) {
            if !state.vma_map.is_vacant(page) && !self.is_zero(state, page)? {
                continue;
            }
            match runs.last_mut() {
                Some(last) if last.end() == page.start => last.len += page.len,
                _ => runs.push(page),
            }
        }
        Ok(runs)
    }

    fn is_zero(&self, state: &State, page: VirtRange) -> Result<bool, Errno> {
        let mut content = [0; LOOK_BYTES];
        let content = &mut content[..page.len.min(LOOK_BYTES)];
        let file = state.file_at(page.start).fd();
        memfile::read_exact_at(file, content, offset(self.range, page))?;
        Ok(content.iter().all(|byte| *byte == 0))
    }
}

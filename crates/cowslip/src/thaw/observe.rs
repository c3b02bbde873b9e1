//! The facts about an arena, asked from the kernel: see [`Facts`].

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::memory::Prot;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::procfs::own;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{Errno, memfile, process, usage};

use crate::arena::chunk::private_pages;
use crate::arena::copy_count::{copied_bytes, is_limit_near};
use crate::arena::inheritance::youngest_read;
use crate::arena::state::{Chunk, Role, Shared, State};
use crate::mapping::backing_file::{Pages, offset};
use crate::memory::chunk_map::ChunkMap;
use crate::memory::vma_map::Usage;
use crate::plan::density::is_worth_splitting;
use crate::plan::facts::{Counts, Facts, Readers};
use crate::plan::settings::{self, moving};
use crate::plan::{Plan, is_movable};
use crate::service::{Look, Service};

/// An arena, seen by the thread that has its lock.
pub(super) struct Observer<'a> {
    shared: &'a Shared,
    state: &'a mut State,
    service: Option<Arc<Service>>,
    is_short: bool,
}

impl<'a> Observer<'a> {
    pub(super) fn new(shared: &'a Shared, state: &'a mut State, look: Look) -> Self {
        let service = shared.service(state);
        let is_short = is_short_of_memory(shared, state, service.as_deref(), look);
        Self { shared, state, service, is_short }
    }

    /// Decides with the arena's plan.
    pub(super) fn decide<T>(&mut self, next: impl FnOnce(&mut Self, &mut Plan) -> T) -> T {
        let plan = std::mem::take(&mut self.state.plan);
        let mut taken = Taken { observer: self, plan };
        next(taken.observer, &mut taken.plan)
    }

    fn scanner(&self) -> Result<&Scanner<ReservedFd>, Errno> {
        self.service.as_ref().map(|service| &service.scanner).ok_or(Errno::NODEV)
    }

    fn place(&self, chunk: usize) -> VirtRange {
        self.shared.chunk_range(chunk, 1)
    }
}

/// A plan while it decides. It goes back to the state, after a panic too.
struct Taken<'o, 'a> {
    observer: &'o mut Observer<'a>,
    plan: Plan,
}

impl Drop for Taken<'_, '_> {
    fn drop(&mut self) {
        std::mem::swap(&mut self.observer.state.plan, &mut self.plan);
    }
}

/// True if memory is too short for copies to linger.
pub(super) fn is_short_of_memory(
    shared: &Shared,
    state: &State,
    service: Option<&Service>,
    look: Look,
) -> bool {
    // The hugetlb pool has set aside what copies need.
    if state.not_live() == 0 || shared.pages == Pages::Hugetlb {
        service.into_iter().for_each(|service| service.gauge.set_ample());
        return false;
    }
    let used_bytes = shared.counters.used_bytes.load(Relaxed);
    // Copies go back before a child has to end.
    let is_limited = shared.copy_limit.was_reached() || shared.copy_limit.is_near();
    service.is_some_and(|service| service.gauge.is_short(used_bytes, look, is_limited))
}

impl Facts for Observer<'_> {
    fn now_ns(&self) -> u64 {
        process::now_ns()
    }

    fn used_ns(&self) -> u64 {
        process::thread_cpu_ns()
    }

    fn map(&self) -> &ChunkMap {
        &self.state.map
    }

    fn is_short(&self) -> bool {
        self.is_short
    }

    fn old_views(&self) -> usize {
        self.state.retired_views.len()
    }

    fn is_held(&self) -> bool {
        self.state.hold().is_some()
    }

    fn has_vacated(&self) -> bool {
        self.state.files.has_vacated()
    }

    fn keeps_borrowed(&self) -> bool {
        self.state.keeps_borrowed
    }

    fn tracks_changes(&self) -> bool {
        self.state.tracking.is_on
    }

    fn is_hugetlb(&self) -> bool {
        self.shared.pages == Pages::Hugetlb
    }

    fn is_served(&self) -> bool {
        self.service.is_some()
    }

    fn may_be_pinned(&self) -> bool {
        self.state.ask_before_thaw.is_some_and(|asks| asks())
    }

    fn readers(&mut self) -> Readers {
        let others = youngest_read(self.shared, self.state);
        self.shared.release_unread(self.state, others);
        let read = others.max(self.state.generations.youngest_view());
        Readers { read, has_ended: self.state.generations.take_ended() }
    }

    fn keep_limit(&mut self, may_end: bool) -> Option<u64> {
        let (shared, state) = (self.shared, &*self.state);
        if state.role == Role::Reader {
            return None;
        }
        let service = self.service.as_ref();
        let room = || service.map_or(u64::MAX, |service| service.gauge.room_bytes());
        let count = |most| copied_bytes(shared, state, most);
        let left = shared.copy_limit.keep(shared.range, &shared.counters, may_end, room, count);
        left.map(|left| left.as_nanos() as u64)
    }

    fn process_private_pages(&self) -> Option<u64> {
        own::anonymous_pages()
    }

    fn used_pages(&self) -> u64 {
        self.shared.counters.used_bytes.load(Relaxed) / page_size_bytes() as u64
    }

    fn faults(&self) -> Option<u64> {
        usage::faults().ok()
    }

    fn private_pages(&self, chunk: usize, most: u64) -> Result<u64, Errno> {
        private_pages(self.shared, self.state, chunk, most, self.scanner()?)
    }

    fn private_by_chunk(&self) -> Result<Counts, Errno> {
        let (shared, state) = (self.shared, &*self.state);
        let least = settings::pages(moving::FRONT_BYTES);
        let mut counts = Counts { pages: vec![0; state.map.len()], in_order: Vec::new() };
        for run in state.map.runs(is_movable) {
            for (piece, _) in state.pieces(shared.chunk_range(run.start, run.len())) {
                self.scanner()?.private_runs(piece, |run| {
                    for (chunk, part) in shared.by_chunk(run) {
                        let pages = (part.len / page_size_bytes()) as u16;
                        counts.pages[chunk] += pages;
                        if u64::from(pages) >= least && counts.in_order.last() != Some(&chunk) {
                            counts.in_order.push(chunk);
                        }
                    }
                })?;
            }
        }
        Ok(counts)
    }

    fn first_written(&self, chunks: Range<usize>) -> Result<Option<usize>, Errno> {
        first_written(self.shared, self.state, chunks, self.scanner()?)
    }

    fn pages_of_run(&self, chunk: usize) -> Result<Option<u64>, Errno> {
        let (place, scanner) = (self.place(chunk), self.scanner()?);
        let begun_pages = settings::pages(moving::BEGUN_BYTES);
        let begun = VirtRange::new(place.start, begun_pages as usize * page_size_bytes());
        if scanner.count_private(begun, begun_pages)? < begun_pages {
            return Ok(None);
        }
        let mut first = None;
        let all = scanner.private_runs(place, |run| _ = first.get_or_insert(run))?;
        let in_order = first.map_or(0, |run| (run.len / page_size_bytes()) as u64);
        Ok((2 * in_order >= all).then_some(all))
    }

    fn may_move(&self, chunk: usize) -> bool {
        let (state, place) = (&*self.state, self.place(chunk));
        !state.has_left(place)
            && !state.is_small(chunk)
            && !state.vma_map.is_unused(place)
            && !is_limit_near(self.shared, state)
            && !self.may_be_pinned()
    }

    fn live_runs(&self) -> Vec<Range<usize>> {
        let (shared, state) = (self.shared, &*self.state);
        let live = state.map.runs(|chunk| chunk == Chunk::Live);
        let used = live
            .flat_map(|run| state.vma_map.used_within(shared.chunk_range(run.start, run.len())));
        used.map(|part| shared.chunks_of(part)).collect()
    }

    fn is_exposed(&self, chunk: usize) -> bool {
        self.state.files.get(self.state.map.file(chunk)).is_exposed()
    }

    fn is_filled(&self, chunk: usize) -> bool {
        let base = self.state.borrowed_base.as_ref();
        base.is_some_and(|base| base.filled().contains(&chunk))
    }

    fn has_one_file(&self) -> bool {
        self.state.files.is_single()
    }

    fn is_crowded(&self) -> bool {
        self.service.as_ref().is_none_or(|service| service.look_for_crowd(self.now_ns()))
    }

    fn can_tend(&self) -> bool {
        let state = &*self.state;
        let may = state.role == Role::Owner && !state.is_pinned && !state.io.any();
        let has_any = state.density.has_any() || !state.vma_map.base_chunks.is_empty();
        may && has_any && self.shared.is_thp()
    }

    fn held_bytes(&self) -> u64 {
        self.state.files.allocated_bytes()
    }

    fn is_any_split_due(&self) -> bool {
        is_worth_splitting(self.state.density.most_kept_pages())
    }

    fn next_sparse(&self, from: usize) -> Option<usize> {
        let (shared, state) = (self.shared, &*self.state);
        let end = state.map.len();
        let given = state.density.next_given(from);
        // Memory that was never handed out holds nothing.
        let rest = VirtRange::between(shared.range.start + from * CHUNK_BYTES, shared.range.end());
        let mut used = state.vma_map.within(rest).filter(|span| span.usage == Usage::Used);
        let base = used.find_map(|span| {
            let chunks = shared.chunks_of(span.range);
            state.vma_map.base_chunks.next(chunks.start, chunks.end.min(end))
        });
        given.into_iter().chain(base).min()
    }

    fn is_split_due(&self, chunk: usize) -> bool {
        is_worth_splitting(self.state.density.kept_pages(chunk))
    }

    fn bytes_to_collapse(&self, chunk: usize) -> Option<u64> {
        let (shared, state, place) = (self.shared, &*self.state, self.place(chunk));
        let is_one_mapping = || {
            let prot = state.pieces(place).first().map_or(Prot::NONE, |(_, prot)| *prot);
            state.pieces(place) == [(place, prot)] && prot.contains(Prot::RW)
        };
        let is_base = state.vma_map.base_chunks.contains(chunk);
        let may = state.is_small(chunk)
            && !state.density.refused.contains(chunk)
            && !(is_base && shared.would_cut_up(state, chunk))
            && state.vma_map.is_all(place, Usage::Used)
            && is_one_mapping();
        let at = offset(shared.range, place);
        let file = state.file_at(place.start);
        let held = may.then(|| memfile::held(file.fd(), at, CHUNK_BYTES as u64))?.ok()?;
        (held.evicted_bytes == 0).then_some(held.bytes)
    }

    fn has_unmapped(&self) -> bool {
        !self.state.unmapped.is_empty()
    }
}

/// The first chunk of a run with a private page.
pub(super) fn first_written(
    shared: &Shared,
    state: &State,
    run: Range<usize>,
    scanner: &Scanner<ReservedFd>,
) -> Result<Option<usize>, Errno> {
    for (piece, _) in state.pieces(shared.chunk_range(run.start, run.len())) {
        if let Some(address) = scanner.first_private(piece)? {
            return Ok(Some((address - shared.range.start) / CHUNK_BYTES));
        }
    }
    Ok(None)
}

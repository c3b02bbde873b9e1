//! The state of an arena, behind one lock.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError, Weak};

use cowslip_sys::memory::Prot;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use super::borrowed_base::BorrowedBase;
use super::child::{Child, Share};
use super::copies::CopyLimit;
use super::file_table::Files;
use super::readers::{Generations, UsersToken};
use super::zero_pages::ZeroPages;
use crate::mapping::backing_file::{BackingFile, Pages};
use crate::mapping::{ArenaPiece, OwnPage, OwnSpace, OwnedRange};
use crate::memory::chunk_map::ChunkMap;
use crate::memory::deferred_free::DeferredFree;
use crate::memory::density::Density;
use crate::memory::role::Holds;
use crate::memory::tracking::{Known, Tracking};
use crate::memory::unmapped::Unmapped;
use crate::memory::vma_map::{Usage, VmaMap};
use crate::metrics::Counters;
use crate::plan::Plan;
use crate::service::{Service, Services};

pub(crate) use crate::memory::chunk_map::{Chunk, Event};
pub(crate) use crate::memory::role::{ForkInheritance, Hold, Role};

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) role: Role,
    /// It hands out no more memory.
    pub(crate) is_closed: bool,
    pub(crate) vma_map: VmaMap,
    pub(crate) map: ChunkMap,
    pub(crate) files: Files,
    /// Brings in absent chunks while there are any.
    pub(crate) worker: Option<Box<dyn Restoring>>,
    /// The readers of frozen memory.
    pub(crate) generations: Generations,
    /// The memory that borrowed chunks map.
    pub(crate) borrowed_base: Option<BorrowedBase>,
    /// Borrowed chunks stay so until asked for, except those that are written a lot.
    pub(crate) keeps_borrowed: bool,
    /// The frozen memory that children forked now have; with all of it they count as readers of the youngest
    /// generation.
    pub(crate) inheritance: ForkInheritance,
    /// Mapped by every process that maps the file. `None` in a process that may not take it over.
    pub(crate) users: Option<UsersToken>,
    /// Its page frames are known outside: nothing is frozen or thawed.
    pub(crate) is_pinned: bool,
    /// Asked before a thaw: true if the arena may be pinned.
    pub(crate) ask_before_thaw: Option<fn() -> bool>,
    /// Memory that a reader gave back.
    pub(crate) zero_pages: ZeroPages,
    /// Memory that left the arena and that children must find empty.
    pub(crate) wiped: Vec<VirtRange>,
    /// Frozen chunks that were given back.
    pub(crate) deferred_free: DeferredFree,
    pub(crate) io: Holds,
    /// Old views, to be unmapped bit by bit.
    pub(crate) retired_views: Vec<OwnSpace>,
    /// Memory to be mapped again.
    pub(crate) unmapped: Unmapped,
    pub(crate) is_thaw_paused: bool,
    pub(crate) plan: Plan,
    pub(crate) tracking: Tracking,
    pub(crate) density: Density,
}

/// Threads that bring in the absent chunks of an arena.
pub(crate) trait Restoring: std::fmt::Debug + Send {
    /// Brings these chunks in first: a thread that holds the arena's lock is about to wait for them.
    fn prioritize(&self, chunks: &[usize]);

    /// Ends the threads after their current chunks.
    fn stop(self: Box<Self>);
}

/// An arena, shared by its handles, its views and its service thread.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) range: VirtRange,
    place: OwnedRange,
    /// The kind of pages that its files are made of.
    pub(crate) pages: Pages,
    pub(crate) counters: OwnPage<Counters>,
    pub(crate) wants_userfaultfd: bool,
    state: Mutex<State>,
    /// How many threads wait for the state.
    waiting: AtomicU32,
    pub(crate) services: Services,
    pub(crate) changed: Condvar,
    /// Children that give way, or that are worth a look at the readers when they end. Locked for an instant only, and
    /// never waited for in a child.
    pub(crate) children: Mutex<Vec<Arc<Child>>>,
    pub(crate) child_share: Share,
    pub(crate) copy_limit: CopyLimit,
    weak: Weak<Self>,
}

impl Shared {
    pub(crate) fn new(
        place: OwnedRange,
        file: Arc<BackingFile>,
        counters: OwnPage<Counters>,
        wants_userfaultfd: bool,
        users: UsersToken,
    ) -> Arc<Self> {
        let (range, pages) = (*place, file.pages);
        let state = State {
            role: Role::Owner,
            is_closed: false,
            vma_map: VmaMap::new(range),
            map: ChunkMap::new(range.len / CHUNK_BYTES),
            files: Files::new(file),
            worker: None,
            generations: Generations::default(),
            borrowed_base: None,
            keeps_borrowed: false,
            inheritance: ForkInheritance::None,
            users: Some(users),
            is_pinned: false,
            ask_before_thaw: None,
            zero_pages: ZeroPages::default(),
            wiped: Vec::new(),
            deferred_free: DeferredFree::default(),
            retired_views: Vec::new(),
            unmapped: Unmapped::default(),
            io: Holds::default(),
            is_thaw_paused: false,
            plan: Plan::default(),
            tracking: Tracking::new(range.len / CHUNK_BYTES),
            density: Density::new(range.len / CHUNK_BYTES),
        };
        let state = Mutex::new(state);
        Arc::new_cyclic(|weak| Self {
            range,
            place,
            pages,
            counters,
            wants_userfaultfd,
            state,
            waiting: AtomicU32::new(0),
            services: Services::default(),
            changed: Condvar::new(),
            children: Mutex::new(Vec::new()),
            child_share: Share::default(),
            copy_limit: CopyLimit::default(),
            weak: weak.clone(),
        })
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.weak.clone()
    }

    /// A panic while the lock was held leaves the state as consistent as a failed system call does.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        if let Some(state) = self.try_lock() {
            return state;
        }
        self.waiting.fetch_add(1, Relaxed);
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A thread of a copied process waits on, though its count is forgotten.
        let _ = self.waiting.fetch_update(Relaxed, Relaxed, |waiting| waiting.checked_sub(1));
        self.without_failed_service(state)
    }

    /// True if a thread waits in [`Self::lock`]. Releasing the lock wakes it, but it comes too late if the service
    /// thread, which wants the lock again after microseconds, does not stay away.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Resets the count in a forked child, which has no thread that waits.
    pub(crate) fn forget_waiting(&self) {
        self.waiting.store(0, Relaxed);
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(self.without_failed_service(state)),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(self.without_failed_service(poisoned.into_inner()))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Treats a service thread that cannot do its work as gone, though it has not ended yet.
    fn without_failed_service<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.services.retire_failed();
        state
    }

    /// The service thread's part of this arena. It stays while the caller holds the lock on `_locked`.
    pub(crate) fn service(&self, _locked: &State) -> Option<Arc<Service>> {
        self.services.current()
    }

    /// Makes the service thread look for work.
    pub(crate) fn notify(&self, locked: &State) {
        if let Some(service) = self.service(locked) {
            service.notify();
        }
    }

    /// The part of the arena at `range`.
    ///
    /// # Panics
    /// If it is not in the arena.
    pub(crate) fn piece(&self, range: VirtRange) -> ArenaPiece {
        self.place.piece(range)
    }

    /// Locks the arena once no chunk of `range` is still to be restored.
    pub(crate) fn lock_restored(&self, range: VirtRange) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while state.map.count(Chunk::Missing) > 0 {
            let is_absent = |chunk: &usize| state.chunk(*chunk) == Chunk::Missing;
            let wanted: Vec<_> = self.chunks_of(range).filter(is_absent).collect();
            let Some(worker) = state.worker.as_ref().filter(|_| !wanted.is_empty()) else { break };
            worker.prioritize(&wanted);
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state
    }

    /// Updates the counters of chunks still to be restored, and of lost ones.
    pub(crate) fn count_restored(&self, state: &State) {
        self.counters.absent_chunks.store(state.map.count(Chunk::Missing) as u64, Relaxed);
        self.counters.lost_chunks.store(state.map.count(Chunk::Poisoned) as u64, Relaxed);
    }

    /// Waits until all of the arena is restored, or lost.
    pub(crate) fn wait_restored(&self) {
        drop(self.lock_restored(self.range));
    }

    /// The range of `count` chunks from chunk `first` on.
    pub(crate) fn chunk_range(&self, first: usize, count: usize) -> VirtRange {
        VirtRange::new(self.range.start + first * CHUNK_BYTES, count * CHUNK_BYTES)
    }

    /// The chunks that `range` touches.
    pub(crate) fn chunks_of(&self, range: VirtRange) -> std::ops::Range<usize> {
        let outer = range.outer_aligned(CHUNK_BYTES).intersect(self.range);
        let first = (outer.start - self.range.start) / CHUNK_BYTES;
        first..first + outer.len / CHUNK_BYTES
    }

    /// `range` cut at the borders of chunks: each part with its chunk.
    pub(crate) fn by_chunk(&self, range: VirtRange) -> impl Iterator<Item = (usize, VirtRange)> {
        let start = self.range.start;
        self.chunks_of(range).map(move |i| {
            let chunk = VirtRange::new(start + i * CHUNK_BYTES, CHUNK_BYTES);
            (i, chunk.intersect(range))
        })
    }
}

impl State {
    pub(crate) fn chunk(&self, index: usize) -> Chunk {
        self.map.get(index)
    }

    /// Notes what happened to one chunk.
    ///
    /// # Panics
    /// If that cannot happen to it.
    pub(crate) fn change(&mut self, chunk: usize, event: Event) {
        self.change_all(chunk..chunk + 1, event);
    }

    /// Notes what happened to chunks.
    ///
    /// # Panics
    /// If that cannot happen to them.
    pub(crate) fn change_all(&mut self, run: Range<usize>, event: Event) {
        if let Err(illegal) = self.map.apply(run.clone(), event) {
            panic!("{illegal}");
        }
        for chunk in run {
            if !matches!(self.chunk(chunk), Chunk::Frozen | Chunk::Clean) {
                self.tracking.forget(chunk);
            }
        }
    }

    /// The mappings that `range` consists of: parts of one protection, one size of pages and one file, without those that
    /// are not the arena's.
    pub(crate) fn pieces(&self, range: VirtRange) -> Vec<(VirtRange, Prot)> {
        let pieces = self.vma_map.pieces(range);
        if self.files.is_single() {
            return pieces;
        }
        let of_one_file = |(piece, prot)| self.by_file(piece).map(move |part| (part, prot));
        pieces.into_iter().flat_map(of_one_file).collect()
    }

    /// `range` cut where the file changes.
    pub(crate) fn by_file(&self, range: VirtRange) -> impl Iterator<Item = VirtRange> {
        let mut rest = range;
        std::iter::from_fn(move || {
            let (first, end) = self.vma_map.chunks_of(rest)?;
            let end = self.vma_map.chunk_start(self.map.file_run_end(first, end));
            let part = VirtRange::between(rest.start, end.min(rest.end()));
            rest = VirtRange::between(part.end(), rest.end());
            Some(part)
        })
    }

    /// The file behind the memory at `address`.
    pub(crate) fn file_at(&self, address: usize) -> &Arc<BackingFile> {
        self.files.get(self.map.file(self.vma_map.chunk_at(address)))
    }

    /// True if `range` has memory that left the arena and stays mapped from its file for good.
    pub(crate) fn has_left(&self, range: VirtRange) -> bool {
        self.vma_map.within(range).any(|span| span.usage == Usage::Left)
    }

    /// True if a chunk must be on base pages: a copy of it in another file might take a huge one.
    pub(crate) fn is_small(&self, chunk: usize) -> bool {
        self.vma_map.base_chunks.contains(chunk) || self.density.is_split(chunk)
    }

    /// The strongest reason not to thaw frozen chunks.
    pub(crate) fn hold(&self) -> Option<Hold> {
        let holds = [
            (Hold::Reader, self.role == Role::Reader),
            (Hold::Pinned, self.is_pinned),
            (Hold::Io, self.io.any()),
            (Hold::Paused, self.is_thaw_paused),
        ];
        holds.into_iter().find_map(|(hold, is_so)| is_so.then_some(hold))
    }

    /// True if the kernel or a device may work on its page frames by itself: they stay where they are.
    pub(crate) fn must_keep_frames(&self) -> bool {
        self.is_pinned || self.io.any()
    }

    /// True if it is closed and all its memory has left.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_closed && self.vma_map.used().is_empty()
    }

    /// Chunks that a freeze made private and no thaw made live again.
    pub(crate) fn not_live(&self) -> usize {
        self.map.private()
    }

    /// Numbers a freeze for a view, for later questions about changes since.
    pub(crate) fn number_freeze(&mut self) -> Known {
        let map = &self.map;
        self.tracking.freeze(|chunk| map.get(chunk) == Chunk::Frozen)
    }
}

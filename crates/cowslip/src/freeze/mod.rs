//! Freeze and thaw.
//!
//! ```text
//!             ┌───────────────────────── freeze (constant time) ─────────────────────────┐
//!             │                                                                          ▼
//!  live    R ──MAP_SHARED──▶ file              frozen  R ──MAP_PRIVATE─▶ file (base)  ◀──MAP_SHARED── V
//!          writes reach the file                       the first write to a page copies 4 KiB;
//!          2 MiB mappings                              V (and children) read the base, nobody writes it
//!             ▲                                                                          │
//!             └────────── thaw, chunk by chunk, once nobody reads the base ──────────────┘
//! ```
//!
//! An arena R is frozen and thawed in chunks of 2 MiB, so that any mixture of the two pictures occurs. A third kind of
//! chunk, *anonymous*, is private memory without a file: the program dropped all of a frozen chunk (`MADV_DONTNEED`),
//! and it must read zeroes while the base keeps its content. A fourth, *free and private*, was free at the freeze and
//! is mapped privately only because it lies between others, so that all of them are one mapping: it has no readers, and
//! becomes live as soon as it is handed out. A fifth, *clean*, is a frozen chunk with a base without readers, left as
//! it was by a thaw because nothing had been written to it: only arenas that track their changes have them
//! ([`thaw::clean`], [`crate::Arena::track_changes`]). To threads that wait for the end of a thaw it is as good as
//! live. A sixth, *borrowed*, is a frozen chunk with its base in the file of another arena, kept by a pin
//! ([`crate::Template::restore`]): a thaw first copies that base to the arena's own file, then it is like any frozen
//! one. A freeze to a view thaws all of them first; children of a fork read the lender's base, so that no thaw waits
//! for them.
//!
//! **Freeze** ([`snapshot`]), with every thread running:
//! 1. `mremap` R's pages to V, leaving R empty: what it shows is still the file, live;
//! 2. if R is several mappings, keep threads from all of them: register R with userfaultfd (missing and minor faults),
//!    and drop the pages that were touched since step 1;
//! 3. map R privately, and wake the threads that waited.
//!
//! One mapping is frozen at the instant of its `mmap`; several are frozen while no thread can access them. Steps
//! that keep threads away are done where a stop of the process does not interrupt them
//! ([`outside`](cowslip_sys::outside)): a reader from outside, which may have stopped all threads, waits as well.
//!
//! **Thaw** ([`thaw`]), a chunk, or a run of clean chunks, at a time: move its pages aside, so that every access waits,
//! find the private pages, copy them into the file, map it shared, wake the waiting threads.
//!
//! A freeze to a view of clean chunks first makes the written ones live. For pages written since
//! ([`snapshot::private`]), threads are kept away before step 1, which moves the private pages along, and before step 3
//! they are copied into the file. Chunks without such pages are as they were at the freeze before. A fork marks clean chunks
//! frozen again: its children read their base, and share their private pages with the parent until one of them writes.
//!
//! A freeze to a view while views or children of earlier freezes live first moves written chunks out of the memory that
//! they read ([`follow`]), and takes frozen chunks along like clean ones; a chunk that is written in between gets
//! another file. The way back to a view ([`mod@roll_back`]) maps the view's content again, while no thread accesses it.
//!
//! # Invariants
//! * **I1, no lost update.** While a thaw copies a chunk no store to it completes: its pages are aside, and the range
//!   that they left is registered with a userfaultfd ([`crate::arena::chunk`]). Pages that were private before are
//!   found by the scan after that. In a freeze, pages that were private in clean chunks are in the view and then in the
//!   file before any thread sees R again.
//! * **I2, frozen is frozen.** The file is written at a chunk only when the chunk is thawed (and no view, child,
//!   template or clone reads it: [`crate::arena::readers`]) or is live. A chunk is made clean only by a thaw, after the
//!   last reader, and a new reader (a view, a fork) makes it frozen first: the base of a clean chunk has no readers
//!   when a freeze writes it.
//! * **I3, causal cut.** A store to one mapping is in the file, or comes after its `mmap`. Between 2 and 3 no thread can
//!   store to several: a store after the freeze comes from a thread that was woken after step 3, or started after it.
//!   Several arenas: threads are kept from all before the first is mapped. Copying private pages of clean chunks in between moves no content: the view shows
//!   the same from the page as from the file.
//! * **I4, all or nothing.** If step 1 or 2 fails, unregistering R makes it live again, since the empty mapping there
//!   is a shared mapping of the file. If step 3 fails for a part, the parts that are private already are thawed.
//!   Private pages of clean chunks that were moved are moved back before any thread is woken; their content in the file
//!   by then is older or the same. A chunk that cannot be thawed moves back and stays frozen.
//! * **I5, private stays private**: see [`crate::Arena::release`] and [`crate::Arena::discard`].
//! * **I6, no thread hangs.** A waiting thread is woken by the call that made it wait, on every path out of that call,
//!   and that call waits for no other thread. A stop of all threads finds none half-way. A child has no registration: the
//!   kernel drops it at fork. A thread that freezes, or a thread of the program that thaws, has no signals meanwhile: a
//!   handler could touch R, on a stack of its own, and wait for itself. A thread does not thaw the memory that holds its
//!   stack ([`crate::arena::chunk::enter`]).
//!
//! Without userfaultfd one `mmap` with `MAP_FIXED` does all steps at once: as atomic for each mapping, 0.25 ms/GiB,
//! and the arena stays frozen, as nothing could hold writers off a thaw.

mod copy;
mod follow;
pub(crate) mod fork;
mod method;
mod pinned;
mod roll_back;
pub(crate) mod snapshot;

use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::memory::Prot;
use cowslip_sys::process;
use cowslip_sys::units::VirtRange;

use crate::arena::allocate::lost;
use crate::arena::file_table::FrozenPiece;
use crate::arena::state::{Chunk, Hold, Shared, State};
use crate::arena::{Arena, Handle, io, own_memory};
use crate::mapping::backing_file::{is_all_data, read_part};
use crate::mapping::{OwnSpace, OwnedRange};
use crate::memory::tracking::Known;
use crate::plan::settings::freeze::{LOOK_AGAIN_NS, STOOD_ON_NS};
use crate::thaw::{self, serve};

pub use copy::FrozenCopy;
pub use follow::MOST_VIEWS;
pub use fork::PreparedFork;
pub use method::FreezeMethod;
pub(crate) use roll_back::{Scope, roll_back};

/// The content of an arena at one instant, readable as long as this lives.
#[derive(Debug)]
pub struct Frozen {
    pub(crate) handle: Arc<Handle>,
    view: OwnSpace,
    method: FreezeMethod,
    /// The frozen parts of the arena, in order.
    pub(crate) layout: Vec<FrozenPiece>,
    /// The memory that was handed out: parts of one protection, in order.
    pub(crate) used: Vec<(VirtRange, Prot)>,
    /// Tells which chunks have not changed since earlier freezes.
    pub(crate) known: Known,
    /// Its number among the generations that are read.
    generation: u64,
    /// The process that made it; its children have it as a value, without the mapping.
    pid: i32,
}

impl Arena {
    /// Freezes the arena: its memory goes on under the same addresses, and the view shows its content at this instant.
    /// Views of earlier freezes, up to [`MOST_VIEWS`], and children of forks may live: each shows its own instant.
    /// Chunks of 2 MiB that were written since the freeze before are moved first, one by one, while the program runs;
    /// each chunk that differs between two views is held for both. If the arena is still being restored, from an image
    /// or a [template](crate::Template::restore), that is finished first, while its threads run.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if there are too many views; without userfaultfd, or on hugetlb pages, while an earlier view, a
    /// child, or an unfinished thaw needs the base;
    /// [`ErrorKind::OutOfMemory`] if the kernel or the hugetlb pool cannot pay for it;
    /// [`ErrorKind::Corrupt`] if a part of it could not be restored; [`ErrorKind::Usage`] if the program's global allocator
    /// takes its memory from the arena. The arena is as before then.
    pub fn freeze(&self) -> Result<Frozen> {
        self.freeze_timeout(Duration::ZERO)
    }

    /// Freezes like [`Self::freeze`], but waits up to `patience` for earlier views to be dropped and thawed instead of being
    /// busy at once.
    ///
    /// # Errors
    /// See [`Self::freeze`].
    pub fn freeze_timeout(&self, patience: Duration) -> Result<Frozen> {
        let frozen = freeze_all_within(&[self], patience)?;
        Ok(frozen.into_iter().next().expect("one view an arena"))
    }

    /// Starts (or ends) tracking what changes from one view to the next, so that [`image::save`] reads only that. A
    /// thaw then leaves chunks of 2 MiB as they are if nothing was written in them: the first write to each of their
    /// pages costs as much as while frozen, until the service thread has made the chunk live again; a freeze moves up
    /// to 64 runs of them one by one, after a search for writes in them.
    ///
    /// Returns true if it tracks now. It needs userfaultfd, transparent huge pages, and `PAGEMAP_SCAN` (Linux 6.7);
    /// without them, saves find changes by reading all of the memory.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use cowslip::image::{SaveOptions, save};
    /// use cowslip::{Arena, units::{ByteCount, CHUNK_BYTES}};
    ///
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// let is_tracked = arena.track_changes(true);
    /// let mut table = arena.slice::<u8>(8 * CHUNK_BYTES)?;
    /// table.fill(7);
    ///
    /// let name = |i| std::env::temp_dir().join(format!("track-{}-{i}", std::process::id()));
    /// let patience = std::time::Duration::from_secs(60);
    /// let mut proceed = |_| ControlFlow::Continue(());
    /// save(&[&arena.freeze()?], &name(0), &SaveOptions::default(), &mut proceed)?;
    /// arena.wait_live(patience);
    /// table[5] = 8;
    /// let options = SaveOptions { parent: Some(name(0)), ..SaveOptions::default() };
    /// let saved = save(&[&arena.freeze()?], &name(1), &options, &mut proceed)?;
    /// assert_eq!((saved.chunks, saved.read_chunks), (1, if is_tracked { 1 } else { 8 }));
    /// # (0..2).for_each(|i| std::fs::remove_file(name(i)).unwrap());
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    ///
    /// [`image::save`]: crate::image::save
    pub fn track_changes(&self, wanted: bool) -> bool {
        let shared = self.shared();
        let can = wanted && serve::ensure(shared);
        let mut state = shared.lock();
        let service = shared.service(&state).filter(|_| can);
        state.tracking.is_on =
            service.is_some_and(|service| thaw::clean::can_keep(shared, &service));
        if !state.tracking.is_on {
            thaw::clean::end(shared, &mut state);
        }
        state.tracking.is_on
    }

    /// Waits until every chunk is live again, and the arena's own; `false` if that took longer than `patience`. It
    /// starts the service thread if none runs that could make them so. Chunks of a
    /// [template](crate::Template::restore) or a [served image](crate::image::Image::restore) are copied from then on,
    /// also without patience.
    pub fn wait_live(&self, patience: Duration) -> bool {
        let is_asked = std::mem::take(&mut self.shared().lock().keeps_borrowed);
        if is_asked && serve::ensure(self.shared()) {
            self.shared().notify(&self.shared().lock());
        }
        let is_live = |_: &Shared, state: &State| state.not_live() == 0;
        wait_served(self.shared(), Instant::now() + patience, is_live).not_live() == 0
    }
}

/// Freezes several arenas at the same instant: no store to one of them lies before its freeze if a
/// store to another that happened before it lies after.
///
/// # Errors
/// See [`Arena::freeze`], for any of them; none is frozen then.
pub fn freeze_all(arenas: &[&Arena]) -> Result<Vec<Frozen>> {
    freeze_all_within(arenas, Duration::ZERO)
}

fn freeze_all_within(arenas: &[&Arena], patience: Duration) -> Result<Vec<Frozen>> {
    let deadline = Instant::now() + patience;
    let mut order: Vec<usize> = (0..arenas.len()).collect();
    order.sort_by_key(|&i| arenas[i].range().start);
    order.dedup_by_key(|i| arenas[*i].range().start);
    if order.len() != arenas.len() {
        return Err(Error::new(ErrorKind::Usage, "freeze").because("an arena was given twice"));
    }
    for &i in &order {
        serve::ensure(arenas[i].shared());
        arenas[i].shared().wait_restored();
    }
    // Before the snapshots, since dropping it needs their locks.
    let _turn = io::Await::released(arenas, Some(deadline));
    let mut served_by = deadline;
    for &i in &order {
        if thaw::end_borrowing(arenas[i].shared())? {
            served_by = deadline.max(Instant::now() + Duration::from_nanos(STOOD_ON_NS));
        }
    }
    let mut snapshots = loop {
        for &i in &order {
            // While nothing is locked, as it may start a thread.
            drop(wait_served(arenas[i].shared(), served_by, follow::is_ready));
        }
        for &i in &order {
            let shared = arenas[i].shared();
            let is_followed = shared.lock().not_live() > 0;
            if is_followed {
                // The plan tries again after a failure here, and reports it.
                let _ = follow::move_ahead(shared);
            }
        }
        if let Some(snapshots) = plan_all(arenas, &order, deadline)? {
            break snapshots;
        }
    };
    let method = snapshot::take(&mut snapshots)?;
    let views = into_views(arenas, &order, snapshots, method);
    if views.is_err() {
        // All are frozen by now, and those that come later have told no service thread.
        for arena in arenas {
            arena.shared().notify(&arena.shared().lock());
        }
    }
    views
}

/// Locks arenas, in ascending `order` of their addresses, and plans their snapshots. `None` if the service thread of one
/// has ended meanwhile, and time is left to start another.
fn plan_all<'a>(
    arenas: &[&'a Arena],
    order: &[usize],
    deadline: Instant,
) -> Result<Option<Vec<snapshot::Snapshot<'a>>>> {
    let mut snapshots = Vec::with_capacity(arenas.len());
    for &i in order {
        let shared = arenas[i].shared();
        let mut state = wait_ready(shared, shared.lock(), deadline);
        if !follow::is_ready(shared, &state) && Instant::now() < deadline {
            return Ok(None);
        }
        if state.map.count(Chunk::Poisoned) > 0 {
            shared.counters.failed_freezes.fetch_add(1, Relaxed);
            return Err(lost("freeze", shared.range));
        }
        let is_held = state.hold().is_some_and(|hold| hold != Hold::Paused);
        if !follow::is_ready(shared, &state) || is_held {
            shared.counters.failed_freezes.fetch_add(1, Relaxed);
            return Err(busy(&state).on(shared.range));
        }
        own_memory::check("freeze", shared, &state)?;
        follow::move_written(shared, &mut state).inspect_err(|_| {
            shared.counters.failed_freezes.fetch_add(1, Relaxed);
        })?;
        snapshots.push(snapshot::Snapshot::plan(shared, state, true)?);
    }
    Ok(Some(snapshots))
}

/// Turns the snapshots of arenas, in ascending `order` of their addresses, into views in the order of the arenas.
fn into_views(
    arenas: &[&Arena],
    order: &[usize],
    snapshots: Vec<snapshot::Snapshot<'_>>,
    method: FreezeMethod,
) -> Result<Vec<Frozen>> {
    let mut views = Vec::with_capacity(arenas.len());
    for (mut snapshot, &i) in snapshots.into_iter().zip(order) {
        let handle = Arc::clone(&arenas[i].handle);
        let layout = frozen_pieces(snapshot.shared, &snapshot.state);
        let used = snapshot.state.vma_map.within(snapshot.shared.range);
        let used = used.filter(|span| span.usage.is_used()).map(|span| (span.range, span.prot));
        let used = used.collect();
        let known = snapshot.state.number_freeze();
        let generation = snapshot.generation();
        // The service thread maps the memory again.
        snapshot.shared.notify(&snapshot.state);
        let view = snapshot.into_view(method)?;
        let pid = process::pid();
        views.push((i, Frozen { handle, view, method, layout, used, known, generation, pid }));
    }
    views.sort_by_key(|(i, _)| *i);
    Ok(views.into_iter().map(|(_, view)| view).collect())
}

/// The frozen parts of an arena, each of one protection and file.
fn frozen_pieces(shared: &Shared, state: &State) -> Vec<FrozenPiece> {
    let frozen = state.map.runs(|chunk| chunk == Chunk::Frozen);
    let pieces = frozen.flat_map(|run| state.pieces(shared.chunk_range(run.start, run.len())));
    let with_file = |(range, prot): (VirtRange, Prot)| FrozenPiece {
        range,
        prot,
        file: Arc::clone(state.file_at(range.start)),
    };
    pieces.map(with_file).collect()
}

fn busy(state: &State) -> Error {
    let because = |reason| Error::new(ErrorKind::Busy, "freeze").because(reason);
    const LET_GO: &str = "let it go first, or wait longer";
    match state.hold() {
        Some(Hold::Reader) => because("this is a forked child that reads its parent's arena"),
        Some(Hold::Pinned) => because("its page frames are registered with the kernel or a device"),
        Some(Hold::Io) => because("its memory is held for direct I/O").advise(LET_GO),
        _ if state.generations.view_count() >= MOST_VIEWS => {
            because("there are as many views as can be").advise(LET_GO)
        }
        _ if state.generations.view_count() > 0 => {
            because("there is a view of the last freeze").advise(LET_GO)
        }
        _ if !state.generations.is_empty() => {
            because("a forked child, a template or a clone of it may still read the last freeze")
                .advise("fork again instead, or wait")
        }
        _ => because("the last freeze is still being thawed").advise("wait longer"),
    }
}

/// Waits until a freeze need not wait, or the service thread has ended.
fn wait_ready<'a>(
    shared: &'a Shared,
    mut state: MutexGuard<'a, State>,
    deadline: Instant,
) -> MutexGuard<'a, State> {
    while !follow::is_ready(shared, &state) {
        let left = deadline.saturating_duration_since(Instant::now());
        let has_ended = shared.service(&state).is_none_or(|service| service.has_failed());
        if left.is_zero() || has_ended {
            break;
        }
        state = wait_for_change(shared, state, left);
    }
    state
}

/// Waits for the service thread until `is_done`, and starts another if it has ended. Called while nothing is locked.
fn wait_served(
    shared: &Shared,
    deadline: Instant,
    is_done: impl Fn(&Shared, &State) -> bool,
) -> MutexGuard<'_, State> {
    let mut state = shared.lock();
    while !is_done(shared, &state) {
        let mut left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if shared.service(&state).is_none_or(|service| service.has_failed()) {
            drop(state);
            if serve::ensure(shared) {
                left = left.min(Duration::from_nanos(LOOK_AGAIN_NS));
            }
            state = shared.lock();
            if is_done(shared, &state) {
                break;
            }
        }
        state = wait_for_change(shared, state, left);
    }
    state
}

fn wait_for_change<'a>(
    shared: &'a Shared,
    mut state: MutexGuard<'a, State>,
    longest: Duration,
) -> MutexGuard<'a, State> {
    state.plan.awaited += 1;
    let waited = shared.changed.wait_timeout(state, longest);
    let mut state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
    state.plan.awaited = state.plan.awaited.saturating_sub(1);
    state
}

impl Frozen {
    /// How the freeze was done.
    pub fn method(&self) -> FreezeMethod {
        self.method
    }

    /// The address at which this view shows the arena's memory at `address`.
    ///
    /// # Panics
    /// If `address` is not of the arena.
    pub fn view_address(&self, address: usize) -> usize {
        let range = self.handle.shared.range;
        assert!(range.contains(address), "{address:#x} is not in the arena {range}");
        self.view.start + (address - range.start)
    }

    /// The part of the view that shows `part` of the arena.
    pub(crate) fn shown(&self, part: VirtRange) -> OwnedRange {
        self.view.part(VirtRange::new(self.view_address(part.start), part.len))
    }

    /// The arena's addresses.
    pub(crate) fn range(&self) -> VirtRange {
        self.handle.shared.range
    }

    /// Copies the frozen content of `part` of the arena to `content`, which is all zeroes; holes are not touched. True
    /// if there was any data.
    pub(crate) fn read_base(
        &self,
        part: VirtRange,
        content: &mut [u8],
    ) -> cowslip_sys::Result<bool> {
        let mut has_any = false;
        for piece in &self.layout {
            let here = piece.range.intersect(part);
            if here.is_empty() {
                continue;
            }
            let at = here.start - part.start;
            let content = &mut content[at..at + here.len];
            has_any |= read_part(&piece.file, self.range(), here, content)?;
        }
        Ok(has_any)
    }

    /// The frozen content of `part` of the arena, in place: memory in use, all of it. `None` if it has holes, which
    /// reading would fill, or this process has no view.
    pub(crate) fn base(&self, part: VirtRange) -> cowslip_sys::Result<Option<&[u8]>> {
        if self.pid != process::pid() {
            return Ok(None);
        }
        let mut at = part.start;
        for piece in &self.layout {
            let here = piece.range.intersect(VirtRange::between(at, part.end()));
            if here.is_empty() {
                continue;
            }
            if here.start != at || !is_all_data(&piece.file, self.range(), here)? {
                return Ok(None);
            }
            at = here.end();
        }
        if at != part.end() {
            return Ok(None);
        }
        Ok(Some(self.values(part)))
    }

    /// Its arena, unless this process is a child of the one that froze it.
    pub(crate) fn handle(&self) -> Option<&Arc<Handle>> {
        (self.pid == process::pid()).then_some(&self.handle)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let view = std::mem::take(&mut self.view);
        if self.pid != process::pid() {
            // A forked child never had the view's mapping.
            view.leak();
            return;
        }
        let mut state = self.handle.shared.lock();
        state.generations.end_view(self.generation);
        // The service thread looks at once.
        state.plan.thaw.look_soon();
        if let Some(service) = self.handle.shared.service(&state) {
            if !view.is_empty() {
                state.retired_views.push(view);
            }
            service.notify();
        } else {
            drop(view);
        }
    }
}

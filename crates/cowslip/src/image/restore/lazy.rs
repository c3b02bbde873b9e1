//! Restores an arena that is already in use: chunks are brought in when they are touched, and in the background.
//!
//! ```text
//!              R ──MAP_SHARED──▶ file, a hole where the chunk will be; missing and minor faults registered
//!   absent     a touch waits in userfaultfd ──▶ [server]  reads the fault: the chunk is wanted
//!     │                                         [readers] wanted chunks first, then the plan's order;
//!     │ into the file and checked (not through R: no thread can see it yet)
//!     ▼
//!   live       R mapped anew over the chunk, without a registration: one huge page; waiting threads wake
//!   lost       the chunk is damaged: R maps an empty file there, an access is a SIGBUS; waiting threads wake
//! ```
//! The first chunk of the plan is live from the beginning if the page cache has it: it is read through R before any
//! thread has the arena, which takes no longer than starting a thread and waiting for it. When no chunk is absent the
//! threads end: nothing is registered and nothing reads the image any more.
//!
//! # What holds
//! * **Checked before it is seen.** The file's pages are behind a registration for minor faults until the whole chunk
//!   is in it and its checksum is verified; wrong content is removed again.
//! * **Never zeroes.** A thread that touches a registered hole waits; a lost chunk is mapped to an empty file. Code
//!   that needs content under the arena's lock takes the lock with `Shared::lock_restored`.
//! * **I6, nobody hangs.** A chunk is claimed once, and the claiming thread makes it live or lost, on every path, and
//!   wakes the waiters. These threads touch no arena, and wait for no lock but the arena's, which is never held while
//!   waiting for a chunk.

use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::memfile::MemfdKind;
use cowslip_sys::memory::Sharing;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::thread::Thread;
use cowslip_sys::uffd::{self, Features, RegisterMode, Uffd};
use cowslip_sys::units::CHUNK_BYTES;
use cowslip_sys::{AsFd, Errno, memfile, process, waiting};

use super::options::{OPERATION, OnDamage, threads};
use super::schedule::RestoreSchedule;
use super::source::{FetchContext, Source};
use crate::arena::state::{Chunk, Event, Restoring, Shared, State};
use crate::image::OnArrival;
use crate::retry::retry_until_ok;

const FEATURES: Features = Features::MISSING_SHMEM.union(Features::MINOR_SHMEM);
/// How long the first fault is awaited before the rest is brought in: the first thread to touch memory has the
/// processors and the memory bandwidth to itself.
const HEAD_START: Duration = Duration::from_millis(1);
const STACK_BYTES: usize = 512 << 10;

/// The threads that bring an arena's absent chunks in.
#[derive(Debug)]
pub(super) struct RestoreWorker {
    work: Arc<Work>,
    server: Thread,
}

pub(super) struct Work {
    source: Source,
    schedule: Arc<RestoreSchedule>,
    uffd: Uffd<ReservedFd>,
    wake: ReservedFd,
    /// An empty file, mapped over lost chunks.
    nothing: ReservedFd,
    /// The number of threads that read; 0 means the number of processors.
    readers: usize,
    on_damage: Option<OnDamage>,
    /// No reading thread could be started.
    has_no_readers: AtomicBool,
    /// Notifies the readers, if chunks arrive from elsewhere.
    listener: Option<Arc<OnArrival>>,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

impl RestoreWorker {
    /// Makes `chunks` of the arena absent and begins to bring them in. The arena must not be in use
    /// yet.
    pub(super) fn start(shared: &Arc<Shared>, chunks: &[u32], work: Work) -> Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        let work = Arc::new(work);
        // Held until everything is in place: the threads take it before they change anything.
        let mut state = shared.lock();
        for run in chunks.chunk_by(|before, after| before + 1 == *after) {
            let range = shared.chunk_range(run[0] as usize, run.len());
            let mode = RegisterMode::MISSING | RegisterMode::MINOR;
            work.uffd.register(range, mode).during(OPERATION)?;
        }
        let server = {
            let (work, shared) = (Arc::clone(&work), Arc::clone(shared));
            // The threads inherit a mask that blocks every signal: handlers are the program's.
            let _blocked = process::BlockedSignals::enter();
            Thread::start(c"cowslip-faults", STACK_BYTES, move || work.serve(&shared))
                .during(OPERATION)?
        };
        for &chunk in chunks {
            state.change(chunk as usize, Event::Miss);
        }
        shared.count_restored(&state);
        state.worker = Some(Box::new(Self { work, server }));
        Ok(())
    }
}

impl Restoring for RestoreWorker {
    fn prioritize(&self, chunks: &[usize]) {
        let want = |chunk: &usize| u32::try_from(*chunk).ok();
        self.work
            .schedule
            .change(|plan| chunks.iter().filter_map(want).for_each(|chunk| plan.want(chunk)));
        process::notify(self.work.wake.as_fd());
    }

    fn stop(self: Box<Self>) {
        self.work.close();
        if !self.server.is_current() {
            self.server.join();
        }
    }
}

impl Work {
    pub(super) fn new(
        source: Source,
        schedule: &Arc<RestoreSchedule>,
        uffd: Uffd<ReservedFd>,
        readers: usize,
        on_damage: Option<OnDamage>,
    ) -> Result<Self> {
        let nothing = memfile::memfd("cowslip-lost", MemfdKind::Shmem, 0).during(OPERATION)?;
        let listener = source.image.has_arrivals().then(|| source.listen(schedule));
        Ok(Self {
            source,
            schedule: Arc::clone(schedule),
            uffd,
            wake: ReservedFd::open(process::eventfd).during(OPERATION)?,
            nothing: ReservedFd::hold(nothing),
            readers,
            on_damage,
            has_no_readers: AtomicBool::new(false),
            listener,
        })
    }

    fn close(&self) {
        self.schedule.close();
        process::notify(self.wake.as_fd());
    }

    /// The work of the thread that reads the faults.
    fn serve(self: &Arc<Self>, shared: &Arc<Shared>) {
        let wanted = threads(self.readers, self.schedule.left());
        let mut context = FetchContext::first(shared, &self.source.file, wanted);
        let (mut readers, mut patience) = (Vec::new(), Some(HEAD_START));
        while !self.schedule.is_closing() {
            let mut ready = [false; 2];
            let fds = [self.uffd.as_fd(), self.wake.as_fd()];
            if process::wait_readable(&fds, &mut ready, patience).is_err() {
                // If the wait is refused, it polls.
                let _ = waiting::nap(Duration::from_millis(1));
            }
            let _ = process::drain(self.wake.as_fd());
            self.read_faults(shared);
            if self.listener.is_some() {
                self.source.need_now(&self.schedule.newly_wanted());
            }
            while self.is_to_bring_in(&readers)
                && let Some(chunk) = self.schedule.claim_wanted()
            {
                self.bring_in(shared, chunk, &mut context);
                self.read_faults(shared);
            }
            if patience.is_some() {
                // The readers that could be started bring everything in.
                readers.extend(
                    (0..wanted).filter_map(|_| self.start_reader(shared, context.beside()).ok()),
                );
                patience = readers.is_empty().then_some(HEAD_START);
                self.has_no_readers.store(readers.is_empty(), Relaxed);
            }
            if readers.is_empty()
                && let Some(chunk) = self.schedule.claim_now()
            {
                self.bring_in(shared, chunk, &mut context);
            }
        }
        readers.into_iter().for_each(Thread::join);
    }

    /// Returns true if the thread that reads the faults brings in wanted chunks itself. It does not wait for chunks
    /// from elsewhere, so that it stays ready for the next fault.
    fn is_to_bring_in(&self, readers: &[Thread]) -> bool {
        self.listener.is_none() || (readers.is_empty() && self.has_no_readers.load(Relaxed))
    }

    fn start_reader(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        mut context: FetchContext,
    ) -> Result<Thread, Errno> {
        let (work, shared) = (Arc::clone(self), Arc::clone(shared));
        Thread::start(c"cowslip-reader", STACK_BYTES, move || work.read(&shared, &mut context))
    }

    fn read_faults(&self, shared: &Shared) {
        let mut touched = Vec::new();
        let chunk = |address| ((address - shared.range.start) / CHUNK_BYTES) as u32;
        let Ok(events) = self.uffd.read_faults(|address| touched.push(chunk(address))) else {
            return;
        };
        shared.counters.waits.fetch_add(events.faults, Relaxed);
        if !touched.is_empty() {
            self.schedule.change(|plan| touched.iter().for_each(|&chunk| plan.touch(chunk)));
        }
    }

    /// The work of the other threads.
    fn read(&self, shared: &Shared, context: &mut FetchContext) {
        self.source.each(&self.schedule, |chunk| {
            self.bring_in(shared, chunk, context);
            ControlFlow::Continue(())
        });
    }

    fn bring_in(&self, shared: &Shared, chunk: u32, context: &mut FetchContext) {
        let fetched = fetch(&self.source, chunk, context);
        self.put(shared, chunk, fetched, context);
    }

    /// Makes a claimed chunk live, or lost.
    fn put(&self, shared: &Shared, chunk: u32, fetched: Result<()>, context: &FetchContext) {
        let range = shared.chunk_range(chunk as usize, 1);
        let shown = fetched.and_then(|()| {
            show(shared, chunk as usize).map_err(|errno| Error::from_errno(OPERATION, errno))
        });
        let last = match shown {
            Ok(last) => last,
            Err(error) => self.lose(shared, chunk as usize, &error.on(range)),
        };
        shared.changed.notify_all();
        let _ = retry_until_ok(|| self.uffd.wake(range));
        if last.is_some() {
            context.close_window();
        }
        self.schedule.change(|plan| plan.finish(chunk));
        if last.is_some() {
            self.close();
        }
    }

    /// Marks a chunk as lost; ends with [`record_arrival`].
    fn lose(&self, shared: &Shared, chunk: usize, error: &Error) -> Option<Box<dyn Restoring>> {
        self.schedule.failed(error);
        let range = shared.chunk_range(chunk, 1);
        if let Some(tell) = &self.on_damage {
            let _ = panic::catch_unwind(AssertUnwindSafe(|| tell.0(error, range)));
        }
        let mut state = shared.lock();
        for (piece, prot) in state.pieces(range) {
            let (piece, nothing) = (shared.piece(piece), self.nothing.as_fd());
            if retry_until_ok(|| piece.map_file(nothing, 0, Sharing::Shared, prot)).is_err() {
                let _ = retry_until_ok(|| piece.unmap());
            }
        }
        record_arrival(shared, &mut state, chunk, Event::Lose)
    }
}

/// Brings in the first chunk of the plan, unless a thread would have to wait for the disk; returns the chunk if it is
/// in.
pub(super) fn bring_first(
    shared: &Shared,
    source: &Source,
    schedule: &RestoreSchedule,
) -> Option<u32> {
    let first = schedule.change(|plan| plan.next())?;
    source.fetch_cached(shared, first).then(|| {
        schedule.change(|plan| plan.claim().map(|chunk| plan.finish(chunk)));
        first
    })
}

/// Like [`Source::fetch`], but turns a panic into an error.
fn fetch(source: &Source, chunk: u32, context: &mut FetchContext) -> Result<()> {
    panic::catch_unwind(AssertUnwindSafe(|| source.fetch(chunk, context))).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::System, OPERATION).because("the thread that reads it panicked"))
    })
}

/// Maps the file's content of a chunk, so that all threads can see it; ends with [`record_arrival`].
fn show(shared: &Shared, chunk: usize) -> Result<Option<Box<dyn Restoring>>, Errno> {
    let mut state = shared.lock();
    for (piece, prot) in state.pieces(shared.chunk_range(chunk, 1)) {
        retry_until_ok(|| state.file_at(piece.start).map_live(shared.piece(piece), prot))?;
    }
    Ok(record_arrival(shared, &mut state, chunk, Event::Show))
}

/// Records that a chunk is no longer absent. With the last one the arena gives up its worker, in the same step: a child
/// that is forked from then on has none, because it would wait for threads that do not exist in it.
fn record_arrival(
    shared: &Shared,
    state: &mut State,
    chunk: usize,
    event: Event,
) -> Option<Box<dyn Restoring>> {
    state.change(chunk, event);
    shared.count_restored(state);
    if state.map.count(Chunk::Missing) == 0 { state.worker.take() } else { None }
}

/// Opens the userfaultfd for a lazy restore, or explains why this process cannot have one.
pub(super) fn open_uffd() -> Result<Uffd<ReservedFd>> {
    let fd = uffd::open_reserved().during(OPERATION)?;
    Uffd::new(fd, FEATURES).during(OPERATION)
}

//! A restore of an arena that is in use already: chunks come in as they are touched, and on their own.
//!
//! ```text
//!              R ──MAP_SHARED──▶ file, a hole where the chunk will be; missing and minor faults registered
//!   absent     who touches it waits in userfaultfd ──▶ [server]  reads the fault: the chunk is wanted
//!     │                                                [readers] wanted chunks first, then the plan's order;
//!     │ into the file and checked (not through R, where nobody can see it yet)
//!     ▼
//!   live       R mapped anew over the chunk, without a registration: one huge page; who waits is woken
//!   lost       the chunk is damaged: R maps an empty file there, an access is a SIGBUS; who waits is woken
//! ```
//! The first of the plan is live from the beginning if the page cache has it: it comes through R before
//! anybody has the arena, which takes no longer than to have a thread begin and to wait for it. When no chunk is absent the threads end: nothing is registered and nothing reads
//! the image any more.
//!
//! # What holds
//! * **Checked before it is seen.** The file's pages are behind a registration for minor faults until the
//!   whole chunk is in it and its checksum was right; what was wrong is taken out again.
//! * **Never zeroes.** A hole that is registered makes who touches it wait; a lost chunk is mapped to
//!   nothing. Whoever needs content under the arena's lock gets the lock by `Shared::lock_restored`.
//! * **I6, nobody hangs.** A chunk is claimed once, and who claimed it makes it live or lost, on every path,
//!   and wakes. The threads that do so touch no arena, and wait for no lock but the arena's, which is
//!   never held while waiting for a chunk.

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

use super::schedule::RestoreSchedule;
use super::source::{Desk, Source};
use super::{OPERATION, OnDamage, threads};
use crate::arena::state::{Event, Restoring, Shared, State};
use crate::image::OnArrival;
use crate::insist::insist;

const FEATURES: Features = Features::MISSING_SHMEM.union(Features::MINOR_SHMEM);
/// How long the first fault is waited for before the rest is brought in: whoever comes first has the
/// processors and the memory's bandwidth to himself.
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
    /// A file without content, for what is lost.
    nothing: ReservedFd,
    /// How many threads shall read; 0: as many as there are processors.
    readers: usize,
    on_damage: Option<OnDamage>,
    /// No thread that reads could be started.
    has_no_readers: AtomicBool,
    /// If chunks arrive from elsewhere, who tells the readers.
    listener: Option<Arc<OnArrival>>,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

impl RestoreWorker {
    /// Makes `chunks` of the arena absent and goes on to bring them in. Nobody uses the arena yet.
    pub(super) fn start(shared: &Arc<Shared>, chunks: &[u32], work: Work) -> Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        let work = Arc::new(work);
        // Held until all is in place: the threads take it before they change anything.
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
            .change(|plan| chunks.iter().filter_map(want).for_each(|it| plan.want(it)));
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
        let listener = source.image.has_arrivals().then(|| schedule.listen(&source));
        Ok(Self {
            source,
            schedule: Arc::clone(schedule),
            uffd,
            wake: ReservedFd::hold(process::eventfd().during(OPERATION)?),
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

    /// What the thread does that faults are told to.
    fn serve(self: &Arc<Self>, shared: &Arc<Shared>) {
        let wanted = threads(self.readers, self.schedule.left());
        let mut desk = Desk::first(shared, &self.source.file, wanted);
        let (mut readers, mut patience) = (Vec::new(), Some(HEAD_START));
        while !self.schedule.is_closing() {
            let mut ready = [false; 2];
            let fds = [self.uffd.as_fd(), self.wake.as_fd()];
            if process::wait_readable(&fds, &mut ready, patience).is_err() {
                // Refused: it looks now and then.
                let _ = waiting::nap(Duration::from_millis(1));
            }
            let _ = process::drain(self.wake.as_fd());
            self.read_faults(shared);
            if self.listener.is_some() {
                self.schedule.need_now(&self.source);
            }
            while self.is_to_bring_in(&readers)
                && let Some(chunk) = self.schedule.claim_wanted()
            {
                self.bring_in(shared, chunk, &mut desk);
                self.read_faults(shared);
            }
            if patience.is_some() {
                // Those that there are bring everything in.
                readers.extend(
                    (0..wanted).filter_map(|_| self.start_reader(shared, desk.beside()).ok()),
                );
                patience = readers.is_empty().then_some(HEAD_START);
                self.has_no_readers.store(readers.is_empty(), Relaxed);
            }
            if readers.is_empty()
                && let Some(chunk) = self.schedule.claim_now()
            {
                self.bring_in(shared, chunk, &mut desk);
            }
        }
        readers.into_iter().for_each(Thread::join);
    }

    /// Whether the thread that faults are told to brings in what is wanted itself. What has to come from elsewhere
    /// it does not wait for: it is there for the next fault.
    fn is_to_bring_in(&self, readers: &[Thread]) -> bool {
        self.listener.is_none() || (readers.is_empty() && self.has_no_readers.load(Relaxed))
    }

    fn start_reader(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        mut desk: Desk,
    ) -> Result<Thread, Errno> {
        let (work, shared) = (Arc::clone(self), Arc::clone(shared));
        Thread::start(c"cowslip-reader", STACK_BYTES, move || work.read(&shared, &mut desk))
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

    /// What the other threads do.
    fn read(&self, shared: &Shared, desk: &mut Desk) {
        self.schedule.each(&self.source, |chunk| {
            self.bring_in(shared, chunk, desk);
            ControlFlow::Continue(())
        });
    }

    fn bring_in(&self, shared: &Shared, chunk: u32, desk: &mut Desk) {
        let fetched = fetch(&self.source, chunk, desk);
        self.put(shared, chunk, fetched, desk);
    }

    /// Makes a claimed chunk live, or lost.
    fn put(&self, shared: &Shared, chunk: u32, fetched: Result<()>, desk: &Desk) {
        let range = shared.chunk_range(chunk as usize, 1);
        let shown = fetched.and_then(|()| {
            show(shared, chunk as usize).map_err(|errno| Error::from_errno(OPERATION, errno))
        });
        let last = match shown {
            Ok(last) => last,
            Err(error) => self.lose(shared, chunk as usize, &error.on(range)),
        };
        shared.changed.notify_all();
        let _ = insist(|| self.uffd.wake(range));
        if last.is_some() {
            desk.close_window();
        }
        self.schedule.change(|plan| plan.finish(chunk));
        if last.is_some() {
            self.close();
        }
    }

    /// As [`settle`].
    fn lose(&self, shared: &Shared, chunk: usize, error: &Error) -> Option<Box<dyn Restoring>> {
        self.schedule.failed(error);
        let range = shared.chunk_range(chunk, 1);
        if let Some(tell) = &self.on_damage {
            let _ = panic::catch_unwind(AssertUnwindSafe(|| tell.0(error, range)));
        }
        let mut state = shared.lock();
        for (piece, prot) in state.pieces(range) {
            let (piece, nothing) = (shared.piece(piece), self.nothing.as_fd());
            if insist(|| piece.map_file(nothing, 0, Sharing::Shared, prot)).is_err() {
                let _ = insist(|| piece.unmap());
            }
        }
        settle(shared, &mut state, chunk, Event::Lose)
    }
}

/// Brings the first chunk of the plan in, unless somebody would have to wait for the disk: which, if it is
/// there.
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

/// As [`Source::fetch`], whatever happens in it.
fn fetch(source: &Source, chunk: u32, desk: &mut Desk) -> Result<()> {
    panic::catch_unwind(AssertUnwindSafe(|| source.fetch(chunk, desk))).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::System, OPERATION).because("the thread that reads it panicked"))
    })
}

/// Lets everybody see what the file has of a chunk. As [`settle`].
fn show(shared: &Shared, chunk: usize) -> Result<Option<Box<dyn Restoring>>, Errno> {
    let mut state = shared.lock();
    for (piece, prot) in state.pieces(shared.chunk_range(chunk, 1)) {
        insist(|| state.file_at(piece.start).map_live(shared.piece(piece), prot))?;
    }
    Ok(settle(shared, &mut state, chunk, Event::Show))
}

/// A chunk is not absent any more. With the last one the arena gives its worker up, in the same step: a
/// child that is forked from then on has none, as it would wait for threads that it does not have.
fn settle(
    shared: &Shared,
    state: &mut State,
    chunk: usize,
    event: Event,
) -> Option<Box<dyn Restoring>> {
    state.change(chunk, event);
    shared.count_restored(state);
    if state.absent() == 0 { state.worker.take() } else { None }
}

/// What a lazy restore needs, or why it is not possible in this process.
pub(super) fn open_uffd() -> Result<Uffd<ReservedFd>> {
    let (fd, _) = uffd::open().during(OPERATION)?;
    Uffd::new(ReservedFd::hold(fd), FEATURES).during(OPERATION)
}

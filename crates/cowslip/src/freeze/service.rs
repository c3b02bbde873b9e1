//! The service thread of an arena: reads userfaultfd events, unmaps old views, thaws.
//!
//! It never waits for the arena's lock (it tries), since who holds it may wait for an event that only
//! this thread reads; and it never touches memory of an arena, since an access could wait for a freeze
//! that waits for this thread. Who starts a thread allocates through libc, and in a program whose allocator
//! lives in an arena that breaks both rules: so [`Service::start`] is called without the lock and
//! returns when the thread has reached its loop. The thread itself never calls a libc function that
//! allocates: to the program's allocator it does not exist.
//!
//! A freeze waits in `mremap` until this thread has read the event. So the thread does not end as long as there is a
//! call left by which it can wait and one by which it can read. If there is none, or it panics, it says so first
//! ([`Sight`]), and gives the userfaultfd up: the kernel then lets go whoever waits, for an event or a fault. Freezes take
//! without userfaultfd, nothing is thawed, and the next [`ensure`] starts another.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Weak};
use std::time::Duration;

use cowslip_sys::error::{During, Result};
use cowslip_sys::failpoints::{self, Op};
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::scheduling::Processors;
use cowslip_sys::thread::Thread;
use cowslip_sys::uffd::{self, Features, Uffd};
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, BorrowedFd, Errno, memfile, process, scheduling, waiting};

use super::pressure::Gauge;
use super::share::{self, Child};
use super::sight::Sight;
use super::thaw::{self, Step, Thawing, Window};
use crate::arena::state::{Role, Shared, State};

/// What the freeze path and the service thread share.
#[derive(Debug)]
struct Tools {
    uffd: Uffd<ReservedFd>,
    wake: ReservedFd,
    scanner: Scanner<ReservedFd>,
    window: Window,
    closing: AtomicBool,
    sight: Sight,
    gauge: Gauge,
    /// The service thread, once it runs with the ordinary scheduling policy; else 0.
    thread_id: AtomicI32,
    /// Where it runs, unless it was brought near.
    processors: Option<Processors>,
    /// The processor that it was brought to, and one; 0 if it was not.
    near: AtomicUsize,
    is_urgent: AtomicBool,
    /// Whether others waited for a processor the last time it looked.
    is_crowded: AtomicBool,
}

impl Tools {
    /// Lets the service thread run before ordinary threads, or no longer. On a busy machine it would
    /// otherwise wait for its turn, and with it everybody who waits for it. Needs `CAP_SYS_NICE`;
    /// without, it is as it is.
    fn set_urgent(&self, urgent: bool) {
        let thread = self.thread_id.load(Relaxed);
        if thread != 0 && self.is_urgent.swap(urgent, Relaxed) != urgent {
            let _ = scheduling::set_urgent(thread, urgent);
        }
    }

    /// Has the service thread run on this processor until it has work of its own: it leaves by itself, as whoever
    /// brought it is in a prioritize.
    fn pin_to_cpu(&self, processor: usize, here: Processors) {
        let thread = self.thread_id.load(Relaxed);
        if thread != 0
            && self.processors.is_some()
            && self.near.load(Relaxed) != processor + 1
            && here.assign(thread).is_ok()
        {
            self.near.store(processor + 1, Relaxed);
        }
    }

    fn leave(&self) {
        if self.near.swap(0, Relaxed) != 0
            && let Some(processors) = self.processors
        {
            let _ = processors.assign(THIS_THREAD);
        }
    }
}

/// A running service thread.
#[derive(Debug)]
pub(crate) struct Service {
    tools: Arc<Tools>,
    thread: Option<Thread>,
}

impl Tools {
    /// Gives up the userfaultfd: the kernel forgets what was registered, and lets go whoever waits.
    fn let_go(&self, arena: VirtRange) {
        // A child that was forked around us may keep the file open, and with it what is registered.
        let _ = self.uffd.unregister(arena);
        self.uffd.get_ref().give_up_for(&self.wake);
        self.sight.set_gone();
    }
}

const THIS_THREAD: i32 = 0;

const STACK_BYTES: usize = 256 << 10;

/// When the lock was taken. Looking more often would take the processor that a fork is about to put
/// its child on.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// As long as there is no call that waits for an event, it looks so often for one: while a freeze waits for it, and else.
const NAP_WHILE_MOVING: Duration = Duration::from_micros(20);
const NAP: Duration = Duration::from_millis(1);

/// So often something may seem to be there when nothing is, one time after the other, before it sleeps.
const MOST_FALSE_ALARMS: u32 = 3;

/// After a slice of time in which nothing changed.
const NO_PROGRESS: Duration = Duration::from_millis(5);

/// How long it works at a time: who wants the arena's lock waits so long, and a step longer.
const SLICE: Duration = Duration::from_micros(200);

/// While others wait for a processor the thread rests so many times as long as it worked.
const REST_WHEN_CROWDED: u32 = 3;

/// The features a freeze and a thaw need.
pub(crate) const FEATURES: Features = Features::PAGEFAULT_FLAG_WP
    .union(Features::EVENT_REMAP)
    .union(Features::MISSING_SHMEM)
    .union(Features::MINOR_SHMEM)
    .union(Features::WP_HUGETLBFS_SHMEM);

impl Service {
    pub(crate) fn start(shared: &Shared) -> Result<Self> {
        const OPERATION: &str = "start the service thread of an arena";
        let (fd, _) = uffd::open().during(OPERATION)?;
        let uffd = Uffd::new(ReservedFd::hold(fd), FEATURES).during(OPERATION)?;
        // What this thread may not do the new one may not.
        uffd.read_events().during(OPERATION)?;
        let wake = ReservedFd::hold(process::eventfd().during(OPERATION)?);
        let pagemap = ReservedFd::hold(memfile::open_proc_self("pagemap").during(OPERATION)?);
        let mut scanner = Scanner::new(pagemap);
        // Without it every page that is not present counts as private: slower, as right.
        let _ = scanner.learn_markers();
        let tools = Arc::new(Tools {
            uffd,
            wake,
            scanner,
            window: Window::reserve().during(OPERATION)?,
            closing: AtomicBool::new(false),
            sight: Sight::default(),
            gauge: Gauge::default(),
            thread_id: AtomicI32::new(0),
            processors: Processors::of(THIS_THREAD).ok(),
            near: AtomicUsize::new(0),
            is_urgent: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
        });

        let shared = shared.weak();
        let theirs = Arc::clone(&tools);
        let started = Arc::new(Barrier::new(2));
        let reached = Arc::clone(&started);
        let lends = scheduling::is_ordinary();
        if lends {
            // Somebody waits for this: on a busy machine a new thread waits for its turn.
            let _ = scheduling::set_urgent(THIS_THREAD, true);
        }
        let thread = {
            // The thread inherits a mask that blocks every signal: handlers are the program's.
            let _quiet = process::BlockedSignals::enter();
            Thread::start(c"cowslip", STACK_BYTES, move || {
                if lends {
                    theirs.thread_id.store(process::thread_id(), Relaxed);
                    // As the thread that starts it is.
                    theirs.is_urgent.store(true, Relaxed);
                }
                reached.wait();
                drop(reached);
                theirs.set_urgent(false);
                let served = panic::catch_unwind(AssertUnwindSafe(|| serve(&theirs, &shared)));
                if !matches!(served, Ok(Ok(()))) {
                    // A freeze that nobody reads events for would wait for ever (I6).
                    go_blind(&theirs, &shared);
                }
            })
        };
        if thread.is_ok() {
            started.wait();
        }
        if lends {
            let _ = scheduling::set_urgent(THIS_THREAD, false);
        }
        Ok(Self { tools, thread: Some(thread.during(OPERATION)?) })
    }

    pub(crate) fn uffd(&self) -> &Uffd<ReservedFd> {
        &self.tools.uffd
    }

    /// What a thaw of this arena works with.
    pub(super) fn thawing<'a>(&'a self, shared: &'a Shared) -> Thawing<'a> {
        let Tools { uffd, scanner, window, .. } = &*self.tools;
        Thawing { shared, guard: Some(uffd), scanner, window }
    }

    /// After the last thaw before the arena is unlocked.
    pub(super) fn close_window(&self) {
        self.tools.window.close();
    }

    pub(crate) fn scanner(&self) -> &Scanner<ReservedFd> {
        &self.tools.scanner
    }

    /// Has the thread run on this processor, at once when its event comes.
    pub(super) fn pin_to_cpu(&self, processor: usize, here: Processors) {
        self.tools.set_urgent(true);
        self.tools.pin_to_cpu(processor, here);
    }

    /// Whether the machine was busy of late.
    pub(super) fn is_crowded(&self) -> bool {
        self.tools.is_crowded.load(Relaxed)
    }

    /// Whether copies must not linger, for the lack of memory.
    pub(super) fn is_short_of_memory(&self, shared: &Shared, state: &State) -> bool {
        self.tools.gauge.is_short(shared, state)
    }

    /// The last answer to that.
    pub(super) fn was_short_of_memory(&self) -> bool {
        self.tools.gauge.was_short()
    }

    /// No freeze may rely on the thread: it has ended, or is about to.
    pub(crate) fn is_blind(&self) -> bool {
        self.tools.sight.is_blind()
    }

    /// What is registered is no more, and nobody can be made to wait.
    pub(super) fn has_let_go(&self) -> bool {
        self.tools.sight.is_gone()
    }

    /// From here on a freeze waits for the thread to read events.
    pub(super) fn begin_moves(&self) -> Result<(), Errno> {
        self.tools.sight.begin_moves()?;
        // What keeps this thread from reading may keep the other: a filter, a descriptor that is gone.
        self.uffd().read_events().map(drop)
    }

    /// It does not any more. An error if the thread let go meanwhile.
    pub(super) fn end_moves(&self) -> Result<(), Errno> {
        self.tools.sight.end_moves()
    }

    pub(crate) fn notify(&self) {
        process::notify(self.tools.wake.as_fd());
    }

    /// Ends the thread and waits for it, unless it is this very thread.
    pub(crate) fn stop(mut self) {
        self.tools.closing.store(true, Relaxed);
        self.notify();
        if let Some(thread) = self.thread.take()
            && !thread.is_current()
        {
            thread.join();
        }
    }

    /// In a forked child, which has the descriptors but not the thread; if it shares the table of descriptors with
    /// its parent, they are the parent's.
    pub(crate) fn abandon(mut self, shares_descriptors: bool) {
        // A handle whose thread does not exist here can be neither joined nor detached.
        if let Some(thread) = self.thread.take() {
            thread.forget_in_child();
        }
        let give_up =
            if shares_descriptors { ReservedFd::leave_open } else { ReservedFd::close_early };
        [self.tools.uffd.get_ref(), &self.tools.wake, self.tools.scanner.get_ref()]
            .into_iter()
            .for_each(give_up);
    }
}

/// Starts the arena's service thread if there is none and userfaultfd is to be had and wanted. Whether it runs now.
pub(crate) fn ensure(shared: &Shared) -> bool {
    let wanted = |state: &State| state.service.is_none() && state.role == Role::Owner;
    // Without the lock: who ends a thread frees what libc allocated for it.
    let buried = std::mem::take(&mut shared.lock().buried);
    buried.into_iter().for_each(Service::stop);
    if shared.wants_userfaultfd && wanted(&shared.lock()) {
        // Without the lock; see the module.
        let Ok(service) = Service::start(shared) else { return false };
        let mut state = shared.lock();
        if wanted(&state) {
            state.service = Some(service);
            // There may be frozen chunks from a time without it.
            state.notify();
        } else {
            drop(state);
            service.stop();
        }
    }
    shared.lock().service.is_some()
}

/// Says that nobody is to rely on this thread, and lets go whoever does.
fn go_blind(tools: &Tools, shared: &Weak<Shared>) {
    tools.sight.go_blind();
    tools.set_urgent(false);
    let Some(shared) = shared.upgrade() else { return };
    // Who thaws in another thread holds the lock, and writers must wait for it until it is done (I1).
    while !tools.sight.is_waited_for() && !tools.closing.load(Relaxed) {
        if let Some(_state) = shared.try_lock() {
            tools.let_go(shared.range);
            return;
        }
        if waiting::nap(NAP).is_err() {
            std::thread::yield_now();
        }
    }
    tools.let_go(shared.range);
}

/// Works until it is told to end; an error if it cannot go on.
fn serve(tools: &Tools, shared: &Weak<Shared>) -> Result<(), Errno> {
    let mut due_ns = None;
    let mut false_alarms = 0;
    while !tools.closing.load(Relaxed) {
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        failpoints::panic_if_told(Op::ServicePanic);
        let listed = share::try_watched(&shared).map(|children| children.clone());
        let again = listed.is_none().then_some(LOOK_AGAIN);
        let children = listed.unwrap_or_default();
        let ends = || children.iter().filter_map(|child| child.end.as_ref());
        let mut fds = vec![tools.uffd.as_fd(), tools.wake.as_fd()];
        fds.extend(ends().map(AsFd::as_fd));
        let mut ready = vec![false; fds.len()];
        let left =
            due_ns.map(|due| Duration::from_nanos(u64::saturating_sub(due, process::now_ns())));
        let look = children.iter().any(|child| child.is_looked_at()).then_some(share::LOOK);
        let patience = left.into_iter().chain(look).chain(again).min();
        let has_slept = !wait(tools, &fds, &mut ready, patience)?;
        let mut told = ready.iter().skip(2);
        let mut is_told = |child: &Child| child.end.is_some() && told.next() == Some(&true);
        let is_over = |child: &&Arc<Child>| {
            is_told(child) || (has_slept && child.has_ended()) || !child.settle(&shared)
        };
        let ended: Vec<_> = children.iter().filter(is_over).collect();
        if !ended.is_empty()
            && let Some(mut children) = share::try_watched(&shared)
        {
            children.retain(|it| !ended.iter().any(|ended| Arc::ptr_eq(it, ended)));
        }
        let is_due = due_ns.is_some_and(|due| process::now_ns() >= due);
        if !has_slept && !ready.contains(&true) && ended.is_empty() && !is_due {
            continue;
        }
        let events = tools.uffd.read_events()?;
        shared.counters.waits.fetch_add(events.faults, Relaxed);
        let is_rung = process::drain(tools.wake.as_fd())?;
        if events.is_empty() && !is_rung && ended.is_empty() && !is_due {
            false_alarms += u32::from(!has_slept);
            if false_alarms > MOST_FALSE_ALARMS {
                // Nobody else would run on this processor.
                tools.set_urgent(false);
                waiting::nap(NAP)?;
            }
            continue;
        }
        false_alarms = 0;
        let Some(mut state) = shared.try_lock() else {
            due_ns = Some(process::now_ns() + LOOK_AGAIN.as_nanos() as u64);
            continue;
        };
        let pause = tools.work(&shared, &mut state);
        drop(state);
        due_ns = pause.map(|pause| process::now_ns() + pause.as_nanos() as u64);
    }
    Ok(())
}

/// Waits for one of `fds`. Where no call does that it sleeps for a moment, and the answer is `false`: whoever has something to
/// tell is to be asked. An error if it could not sleep either.
fn wait(
    tools: &Tools,
    fds: &[BorrowedFd<'_>],
    ready: &mut [bool],
    patience: Option<Duration>,
) -> Result<bool, Errno> {
    if waiting::readable(fds, ready, patience).is_ok() {
        return Ok(true);
    }
    // Who looks a thousand times a second does so when nobody else wants the processor.
    tools.set_urgent(false);
    let nap = if tools.sight.is_waited_for() { NAP_WHILE_MOVING } else { NAP };
    waiting::nap(patience.map_or(nap, |patience| nap.min(patience)))?;
    ready.fill(false);
    Ok(false)
}

impl Tools {
    /// Does what is to be done, for a slice of time: how long until there is more, if there is.
    fn work(&self, shared: &Shared, state: &mut State) -> Option<Duration> {
        self.leave();
        // Who may be waiting for this thread must not wait for its turn as well.
        self.set_urgent(true);
        let began_ns = process::now_ns();
        let before = progress(shared, state);
        let (step, took) = loop {
            let step = thaw::step(shared, state);
            let took = Duration::from_nanos(process::now_ns() - began_ns);
            if !matches!(step, Step::Again) || took >= SLICE {
                break (step, took);
            }
        };
        self.window.close();
        match step {
            // Each moment that it does not run costs memory.
            Step::Again if self.gauge.was_short() && before != progress(shared, state) => {
                Some(Duration::ZERO)
            }
            Step::Again => {
                self.set_urgent(false);
                if before == progress(shared, state) {
                    // Work that nothing comes of must not take a processor from everybody.
                    return Some(NO_PROGRESS);
                }
                let is_crowded = scheduling::is_crowded();
                self.is_crowded.store(is_crowded, Relaxed);
                Some(if is_crowded { took * REST_WHEN_CROWDED } else { Duration::ZERO })
            }
            // It stays urgent: what comes next may be the event of a freeze.
            Step::Later(delay) => Some(delay),
            Step::Idle => None,
        }
    }
}

/// What changes whenever something is done.
fn progress(shared: &Shared, state: &State) -> [u64; 6] {
    let stale_bytes: usize = state.retired_views.iter().map(|view| view.len).sum();
    let counters = shared.counters;
    [
        state.not_live() as u64,
        stale_bytes as u64,
        state.unmapped.bytes() as u64,
        state.thaw.look.next as u64,
        counters.thawed_pages.load(Relaxed) + counters.thawed_chunks.load(Relaxed),
        counters.thaws.load(Relaxed),
    ]
}

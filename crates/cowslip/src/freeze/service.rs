//! The service thread of an arena: reads userfaultfd events, unmaps old views, thaws.
//!
//! It never waits for the arena's lock (it tries), since who holds it may wait for an event that only
//! this thread reads; and it never touches memory of an arena, since an access could wait for a freeze
//! that waits for this thread. Who starts a thread allocates through libc, and in a program whose allocator
//! lives in an arena that breaks both rules: so [`Service::start`] is called without the lock and
//! returns when the thread has reached its loop. The thread itself never calls a libc function that
//! allocates: to the program's allocator it does not exist.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, MutexGuard, Weak};
use std::time::Duration;

use super::share::{self, Child};
use super::thaw::{self, Step, Thawing, Window};
use crate::arena::state::Shared;
use crate::error::{During, Result};
use crate::sys::held::HeldFd;
use crate::sys::pagemap::Scanner;
use crate::sys::scheduling::Processors;
use crate::sys::thread::Thread;
use crate::sys::uffd::{self, Features, Uffd};
use crate::sys::{AsFd, memfile, process, scheduling};

/// What the freeze path and the service thread share.
#[derive(Debug)]
struct Tools {
    uffd: Uffd<HeldFd>,
    wake: HeldFd,
    scanner: Scanner<HeldFd>,
    window: Window,
    closing: AtomicBool,
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
    /// brought it is in a hurry.
    fn bring_near(&self, processor: usize, here: Processors) {
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

const THIS_THREAD: i32 = 0;

const STACK_BYTES: usize = 256 << 10;

/// When the lock was taken. Looking more often would take the processor that a fork is about to put
/// its child on.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

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
        let uffd = Uffd::new(HeldFd::hold(fd), FEATURES).during(OPERATION)?;
        let wake = HeldFd::hold(process::eventfd().during(OPERATION)?);
        let pagemap = HeldFd::hold(memfile::open_proc_self("pagemap").during(OPERATION)?);
        let mut scanner = Scanner::new(pagemap);
        // Without it every page that is not present counts as private: slower, as right.
        let _ = scanner.learn_markers();
        let tools = Arc::new(Tools {
            uffd,
            wake,
            scanner,
            window: Window::reserve().during(OPERATION)?,
            closing: AtomicBool::new(false),
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
            let _quiet = process::Quiet::enter();
            Thread::start(c"cowslip", STACK_BYTES, move || {
                if lends {
                    theirs.thread_id.store(process::thread_id(), Relaxed);
                    // As the thread that starts it is.
                    theirs.is_urgent.store(true, Relaxed);
                }
                reached.wait();
                drop(reached);
                theirs.set_urgent(false);
                // A freeze that nobody reads events for would wait for ever (I6).
                while panic::catch_unwind(AssertUnwindSafe(|| serve(&theirs, &shared))).is_err() {}
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

    pub(crate) fn uffd(&self) -> &Uffd<HeldFd> {
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

    pub(crate) fn scanner(&self) -> &Scanner<HeldFd> {
        &self.tools.scanner
    }

    /// Has the thread run on this processor, at once when its event comes.
    pub(super) fn bring_near(&self, processor: usize, here: Processors) {
        self.tools.set_urgent(true);
        self.tools.bring_near(processor, here);
    }

    /// Where the thread runs at other times: where the thread ran that started it.
    pub(super) fn processors(&self) -> Option<Processors> {
        self.tools.processors
    }

    /// Whether the machine was busy of late.
    pub(super) fn is_crowded(&self) -> bool {
        self.tools.is_crowded.load(Relaxed)
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

    /// In a forked child, which has the descriptors but not the thread.
    pub(crate) fn abandon(mut self) {
        // A handle whose thread does not exist here can be neither joined nor detached.
        if let Some(thread) = self.thread.take() {
            thread.forget_in_child();
        }
        self.tools.uffd.get_ref().close_early();
        self.tools.wake.close_early();
        self.tools.scanner.get_ref().close_early();
    }
}

fn serve(tools: &Tools, shared: &Weak<Shared>) {
    let mut due_ns = None;
    while !tools.closing.load(Relaxed) {
        let Some(shared) = shared.upgrade() else { return };
        let children = watched(&shared).clone();
        let mut fds = vec![tools.uffd.as_fd(), tools.wake.as_fd()];
        fds.extend(children.iter().map(|child| child.end.as_fd()));
        let mut ready = vec![false; fds.len()];
        let left =
            due_ns.map(|due| Duration::from_nanos(u64::saturating_sub(due, process::now_ns())));
        let look = children.iter().any(|child| child.gives_way()).then_some(share::LOOK);
        if process::wait_readable(&fds, &mut ready, left.into_iter().chain(look).min()).is_err() {
            return;
        }
        for (child, ended) in children.iter().zip(&ready[2..]) {
            if !ended {
                child.settle(&shared);
            }
        }
        if !ready.contains(&true) && due_ns.is_none_or(|due| process::now_ns() < due) {
            continue;
        }
        if ready[0]
            && let Ok(events) = tools.uffd.read_events()
        {
            shared.counters.waits.fetch_add(events.faults, Relaxed);
        }
        if ready[1] {
            process::drain(tools.wake.as_fd());
        }
        for (child, _) in children.iter().zip(&ready[2..]).filter(|(_, ended)| **ended) {
            watched(&shared).retain(|watched| !Arc::ptr_eq(watched, child));
        }
        let Some(mut state) = shared.try_lock() else {
            due_ns = Some(process::now_ns() + LOOK_AGAIN.as_nanos() as u64);
            continue;
        };
        tools.leave();
        // Who may be waiting for this thread must not wait for its turn as well.
        tools.set_urgent(true);
        let began_ns = process::now_ns();
        let (step, took) = loop {
            let step = thaw::step(&shared, &mut state);
            let took = Duration::from_nanos(process::now_ns() - began_ns);
            if !matches!(step, Step::Again) || took >= SLICE {
                break (step, took);
            }
        };
        tools.window.close();
        drop(state);
        let pause = match step {
            Step::Again => {
                tools.set_urgent(false);
                let is_crowded = scheduling::is_crowded();
                tools.is_crowded.store(is_crowded, Relaxed);
                Some(if is_crowded { took * REST_WHEN_CROWDED } else { Duration::ZERO })
            }
            // It stays urgent: what comes next may be the event of a freeze.
            Step::Later(delay) => Some(delay),
            Step::Idle => None,
        };
        due_ns = pause.map(|pause| process::now_ns() + pause.as_nanos() as u64);
    }
}

fn watched(shared: &Shared) -> MutexGuard<'_, Vec<Arc<Child>>> {
    shared.children.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

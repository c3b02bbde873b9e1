//! The service thread of an arena, as other threads see it: the state that they share with it, and its health.
//!
//! The work of the thread is in `thaw::serve`. A freeze waits in `mremap` until it has read the event.

mod health;
mod pressure;
mod window;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use cowslip_sys::error::{During, Result};
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::{FileIdentity, ReservedFd, same_file};
use cowslip_sys::scheduling::Processors;
use cowslip_sys::thread::Thread;
use cowslip_sys::uffd::{self, Features, Uffd};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{AsFd, BorrowedFd, Errno, process, scheduling};

use crate::mapping::OwnSpace;

pub(crate) use health::ServiceHealth;
pub(crate) use pressure::{Gauge, Look};
pub(crate) use window::Window;

const THIS_THREAD: i32 = 0;

/// `/proc/loadavg` takes some microseconds to read.
const CROWD_LOOK_NS: u64 = 1_000_000;

/// The features a freeze and a thaw need.
pub(crate) const FEATURES: Features = Features::PAGEFAULT_FLAG_WP
    .union(Features::EVENT_REMAP)
    .union(Features::MISSING_SHMEM)
    .union(Features::MINOR_SHMEM)
    .union(Features::WP_HUGETLBFS_SHMEM);

/// The features that a thaw needs to keep threads from memory.
const HOLD_FEATURES: Features = Features::MISSING_SHMEM.union(Features::MINOR_SHMEM);

/// The most chunks that are thawed in one step.
pub(crate) const RUN_CHUNKS: usize = 16;
const ASIDE_BYTES: usize = RUN_CHUNKS * CHUNK_BYTES;

/// The state that the service thread shares with threads that rely on it.
#[derive(Debug)]
pub(crate) struct Service {
    /// Address space for pages of held memory, used by the thread that has the arena's lock. First: it is unmapped before
    /// the rest is closed.
    pub(crate) aside: OwnSpace,
    pub(crate) uffd: Uffd<ReservedFd>,
    /// Makes threads wait for memory that a thaw maps anew. Moves of memory registered with it are no events.
    pub(crate) hold: Uffd<ReservedFd>,
    wake: ReservedFd,
    /// Identities of the descriptors that are read and written: of the userfaultfd, and of `wake`.
    identities: [FileIdentity; 2],
    pub(crate) scanner: Scanner<ReservedFd>,
    /// Used by the thread that has the arena's lock.
    pub(crate) window: Window,
    started: OnceLock<()>,
    closing: AtomicBool,
    /// Changed by the thread that has the arena's lock.
    is_away: AtomicBool,
    pub(crate) health: ServiceHealth,
    pub(crate) gauge: Gauge,
    /// The service thread, once it runs with the ordinary scheduling policy; else 0.
    thread_id: AtomicI32,
    /// Its processors, unless a freeze has it run elsewhere.
    processors: Option<Processors>,
    /// One more than the processor that a freeze has it run on; 0 if it is not pinned.
    pinned_to: AtomicUsize,
    is_urgent: AtomicBool,
    /// True if other threads waited for a processor at its last look.
    pub(crate) is_crowded: AtomicBool,
    /// The time of that look.
    crowd_seen_ns: AtomicU64,
}

impl Service {
    /// Opens the descriptors and reserves the space of a service thread, in this thread.
    pub(crate) fn open(operation: &'static str) -> Result<Self> {
        let open_uffd = || uffd::open_reserved().during(operation);
        let uffd = Uffd::new(open_uffd()?, FEATURES).during(operation)?;
        // If this thread may not read events, the new one may not either.
        uffd.read_events().during(operation)?;
        let hold = Uffd::new(open_uffd()?, HOLD_FEATURES).during(operation)?;
        let wake = ReservedFd::open(process::eventfd).during(operation)?;
        let identities = [
            FileIdentity::of(uffd.as_fd()).during(operation)?,
            FileIdentity::of(wake.as_fd()).during(operation)?,
        ];
        Ok(Self {
            uffd,
            hold,
            aside: OwnSpace::reserve_apart(ASIDE_BYTES, CHUNK_BYTES).during(operation)?,
            wake,
            identities,
            scanner: Scanner::open().during(operation)?,
            window: Window::reserve().during(operation)?,
            started: OnceLock::new(),
            closing: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            health: ServiceHealth::default(),
            gauge: Gauge::default(),
            thread_id: AtomicI32::new(0),
            processors: Processors::of(THIS_THREAD).ok(),
            pinned_to: AtomicUsize::new(0),
            is_urgent: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
            crowd_seen_ns: AtomicU64::new(0),
        })
    }

    /// Called by the service thread: from here on it allocates nothing through libc.
    pub(crate) fn set_started(&self) {
        let _ = self.started.set(());
    }

    /// Waits until the thread has [started](Self::set_started). Until then no thread may hold a lock or memory that it
    /// could need, nor rely on its reading events.
    pub(crate) fn wait_started(&self) {
        self.started.wait();
    }

    /// Called by the service thread: others may give it another priority, and it has `urgent` now.
    pub(crate) fn lend(&self, urgent: bool) {
        self.thread_id.store(process::thread_id(), Relaxed);
        self.is_urgent.store(urgent, Relaxed);
    }

    /// Lets the service thread run before ordinary threads, or no longer: only for the moments in which a thread waits
    /// for it, which on a busy machine would otherwise wait for its turn as well. Without `CAP_SYS_NICE` nothing changes.
    pub(crate) fn set_urgent(&self, urgent: bool) {
        let thread = self.thread_id.load(Relaxed);
        if thread != 0 && self.is_urgent.swap(urgent, Relaxed) != urgent {
            let _ = scheduling::set_urgent(thread, urgent);
        }
    }

    /// The same, if this is the service thread: others thaw as well, with their own priority.
    pub(crate) fn set_urgent_here(&self, urgent: bool) {
        if self.thread_id.load(Relaxed) == process::thread_id() {
            self.set_urgent(urgent);
        }
    }

    /// Makes the service thread run on this processor, at once when its event comes, until it has work of its own: it
    /// leaves by itself, as the caller is in a hurry.
    pub(crate) fn pin_to_cpu(&self, processor: usize, here: Processors) {
        self.set_urgent(true);
        let thread = self.thread_id.load(Relaxed);
        if thread != 0
            && self.processors.is_some()
            && self.pinned_to.load(Relaxed) != processor + 1
            && here.assign(thread).is_ok()
        {
            self.pinned_to.store(processor + 1, Relaxed);
        }
    }

    /// Called by the service thread: it runs on any of its processors again.
    pub(crate) fn unpin(&self) {
        if self.pinned_to.swap(0, Relaxed) != 0
            && let Some(processors) = self.processors
        {
            let _ = processors.assign(THIS_THREAD);
        }
    }

    /// Called by the service thread: notes whether others wait for a processor, by a look that is no older than a
    /// millisecond.
    pub(crate) fn look_for_crowd(&self, now_ns: u64) {
        if now_ns.saturating_sub(self.crowd_seen_ns.load(Relaxed)) >= CROWD_LOOK_NS {
            self.crowd_seen_ns.store(now_ns, Relaxed);
            self.is_crowded.store(scheduling::is_crowded(), Relaxed);
        }
    }

    /// Readable when a thread has [notified](Self::notify) it.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the service thread look for work.
    pub(crate) fn notify(&self) {
        // Otherwise it would write to a file that the program has there by now.
        if same_file(self.wake.as_fd(), self.identities[1]) {
            process::notify(self.wake.as_fd());
        }
    }

    /// `BADF` if the program has put another file in the place of a descriptor that is about to be read.
    pub(crate) fn check_descriptors(&self) -> cowslip_sys::Result<()> {
        let [uffd, wake] = self.identities;
        let are_ours = same_file(self.uffd.as_fd(), uffd) && same_file(self.wake.as_fd(), wake);
        if are_ours { Ok(()) } else { Err(Errno::BADF) }
    }

    /// True if it must end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Called by the service thread: nothing may rely on it from here on, or again.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Relaxed);
    }

    /// Notes that a freeze waits from here on for the thread to read events.
    pub(crate) fn begin_moves(&self) -> cowslip_sys::Result<()> {
        self.health.begin_moves()?;
        // Whatever keeps this thread from reading may keep the other: a filter, a descriptor that is gone.
        self.uffd.read_events().map(drop)
    }

    /// Closes the userfaultfd: the kernel forgets its registrations, and releases all waiting threads.
    pub(crate) fn let_go(&self, arena: VirtRange) {
        // A child that was forked without our knowledge may keep the file open, and with it the registrations.
        let _ = self.uffd.unregister(arena);
        self.uffd.get_ref().give_up_for(&self.wake);
    }
}

/// A service, and the thread that serves.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) service: Arc<Service>,
    pub(crate) thread: Thread,
}

impl Running {
    /// Ends the thread and waits for it, unless it is this very thread.
    pub(crate) fn stop(self) {
        self.service.closing.store(true, Relaxed);
        self.service.notify();
        if !self.thread.is_current() {
            self.thread.join();
        }
    }
}

/// The service thread of an arena, if it has one. Changed and read by the thread that has the arena's lock, for an
/// instant each, so that it stays while that is held.
#[derive(Debug, Default)]
pub(crate) struct Services(Mutex<Slot>);

#[derive(Debug, Default)]
struct Slot {
    running: Option<Running>,
    /// Service threads that cannot be relied on any more, to be ended where that is safe.
    retired: Vec<Running>,
}

impl Services {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The service thread that can be relied on.
    pub(crate) fn current(&self) -> Option<Arc<Service>> {
        let slot = self.slot();
        let running =
            slot.running.as_ref().filter(|running| !running.service.is_away.load(Relaxed));
        running.map(|running| Arc::clone(&running.service))
    }

    /// True if there is a service thread, even if it is away.
    pub(crate) fn is_any(&self) -> bool {
        self.slot().running.is_some()
    }

    /// True if this is the arena's service, and no other was installed.
    pub(crate) fn is_running(&self, service: &Service) -> bool {
        let slot = self.slot();
        slot.running.as_ref().is_some_and(|running| std::ptr::eq(&*running.service, service))
    }

    /// Installs a service thread where there is none, or one that is away: that one ends when it is back.
    pub(crate) fn install(&self, running: Running) {
        let mut slot = self.slot();
        let away = slot.running.replace(running);
        slot.retired.extend(away);
    }

    /// Retires a service thread that cannot do its work, though it has not ended yet.
    pub(crate) fn retire_failed(&self) {
        let mut slot = self.slot();
        let failed = slot.running.take_if(|running| running.service.health.has_failed());
        slot.retired.extend(failed);
    }

    pub(crate) fn take(&self) -> Option<Running> {
        self.slot().running.take()
    }

    /// Takes the retired threads, to be stopped without the arena's lock: ending a thread frees memory that libc
    /// allocated for it.
    pub(crate) fn take_retired(&self) -> Vec<Running> {
        std::mem::take(&mut self.slot().retired)
    }

    /// In a forked child: abandons the service threads, which are the parent's.
    pub(crate) fn in_child(&self) {
        let Slot { running, retired } = &mut *self.slot();
        let services = running.take().into_iter().chain(retired.drain(..));
        // A handle of a thread that does not exist here can be neither joined nor detached.
        services.for_each(|running| running.thread.forget_in_child());
    }
}

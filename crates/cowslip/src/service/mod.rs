//! The service thread of an arena, as other threads see it: the state that they share with it.
//!
//! The work of the thread is in `thaw::serve`. No freeze waits for it.

mod pressure;
mod warm;
mod window;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use cowslip_sys::error::{During, Result};
use cowslip_sys::memory::Prot;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::{FileIdentity, ReservedFd, same_file};
use cowslip_sys::thread::Thread;
use cowslip_sys::uffd::{self, Features, Uffd};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, BorrowedFd, Errno, outside, process, procfs, scheduling};

use crate::mapping::OwnSpace;
use crate::plan::settings::pressure::CROWD_LOOK_NS;
use crate::plan::settings::thaw::RUN_CHUNKS;

pub(crate) use pressure::{Gauge, Look};
pub(crate) use warm::WarmPage;
pub(crate) use window::Window;

/// The features that a thaw needs for write protection.
pub(crate) const FEATURES: Features = Features::PAGEFAULT_FLAG_WP
    .union(Features::MISSING_SHMEM)
    .union(Features::MINOR_SHMEM)
    .union(Features::WP_HUGETLBFS_SHMEM);

/// The features that a freeze and a thaw need to keep threads from memory.
const HOLD_FEATURES: Features = Features::MISSING_SHMEM.union(Features::MINOR_SHMEM);

const ASIDE_BYTES: usize = RUN_CHUNKS * CHUNK_BYTES;
const OUTSIDE_STACK_BYTES: usize = 256 << 10;

/// The state that the service thread shares with threads that rely on it.
#[derive(Debug)]
pub(crate) struct Service {
    /// Address space for pages of held memory, used by the thread that has the arena's lock. First: it is unmapped before
    /// the rest is closed.
    pub(crate) aside: OwnSpace,
    pub(crate) uffd: Uffd<ReservedFd>,
    /// Makes threads wait for memory that is mapped anew.
    pub(crate) hold: Uffd<ReservedFd>,
    wake: ReservedFd,
    /// Identities of the descriptors that are read and written: of the userfaultfd, and of `wake`.
    identities: [FileIdentity; 2],
    pub(crate) scanner: Scanner<ReservedFd>,
    /// `/proc/self/mem` (`proc_pid_mem(5)`): opened in time, since a program may filter its calls by the time it is read.
    memory: Option<(ReservedFd, FileIdentity)>,
    /// Used by the thread that has the arena's lock.
    pub(crate) window: Window,
    /// Used by the service thread.
    pub(crate) warm_page: WarmPage,
    /// The stack of work that no stop interrupts, used by the thread that has the arena's lock; `None` if such work is not
    /// possible.
    outside: Option<OwnSpace>,
    started: OnceLock<()>,
    closing: AtomicBool,
    /// Changed by the thread that has the arena's lock.
    is_away: AtomicBool,
    has_failed: AtomicBool,
    pub(crate) gauge: Gauge,
    /// The service thread, once it runs with the ordinary scheduling policy; else 0.
    thread_id: AtomicI32,
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
            FileIdentity::from_fd(uffd.as_fd()).during(operation)?,
            FileIdentity::from_fd(wake.as_fd()).during(operation)?,
        ];
        Ok(Self {
            uffd,
            hold,
            aside: OwnSpace::reserve_apart(ASIDE_BYTES, CHUNK_BYTES).during(operation)?,
            wake,
            identities,
            scanner: Scanner::open().during(operation)?,
            memory: open_memory().ok(),
            window: Window::reserve().during(operation)?,
            warm_page: WarmPage::reserve(),
            outside: outside::is_possible().then(outside_stack).transpose().during(operation)?,
            started: OnceLock::new(),
            closing: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            gauge: Gauge::default(),
            thread_id: AtomicI32::new(0),
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

    /// Resets the calling thread to an ordinary one, if it is the service thread.
    pub(crate) fn set_ordinary(&self) {
        if self.is_urgent.load(Relaxed) && self.is_this_thread() {
            self.set_urgent(false);
        }
    }

    fn is_this_thread(&self) -> bool {
        self.thread_id.load(Relaxed) == process::thread_id()
    }

    /// Returns true, and notes it, if threads wait for a processor, by a look that is no older than a millisecond.
    pub(crate) fn look_for_crowd(&self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.crowd_seen_ns.load(Relaxed)) >= CROWD_LOOK_NS {
            self.crowd_seen_ns.store(now_ns, Relaxed);
            self.is_crowded.store(scheduling::is_crowded(), Relaxed);
        }
        self.is_crowded.load(Relaxed)
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

    /// A file that shows all memory of this process, also what it may not read.
    pub(crate) fn memory(&self) -> Option<BorrowedFd<'_>> {
        let (file, identity) = self.memory.as_ref()?;
        same_file(file.as_fd(), *identity).then(|| file.as_fd())
    }

    /// `BADF` if the program has put another file in the place of a descriptor that is about to be read.
    pub(crate) fn check_descriptors(&self) -> cowslip_sys::Result<()> {
        let [uffd, wake] = self.identities;
        let are_ours = same_file(self.uffd.as_fd(), uffd) && same_file(self.wake.as_fd(), wake);
        if are_ours { Ok(()) } else { Err(Errno::BADF) }
    }

    /// True if nothing may rely on the service thread, now or later.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// Called by the service thread, before it ends for any other reason than being told.
    pub(crate) fn set_failed(&self) {
        self.has_failed.store(true, Relaxed);
    }

    /// True if it must end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Called by the service thread: nothing may rely on it from here on, or again.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Relaxed);
    }

    /// Does work that keeps threads from memory, before ordinary threads where that is permitted. A debugger that stops
    /// all threads, and then reads that memory, does not wait for a stopped one.
    pub(crate) fn outside<T>(&self, work: impl FnOnce() -> T) -> T {
        // Other threads thaw as well, with their own priority.
        let is_service = self.is_this_thread();
        let was_urgent = self.is_urgent.load(Relaxed);
        if is_service {
            // The task inherits it.
            self.set_urgent(true);
        }
        let done = match &self.outside {
            Some(stack) => stack.with_stack(work),
            None => work(),
        };
        if is_service {
            self.set_urgent(was_urgent);
        }
        done
    }

    /// Closes the userfaultfd: the kernel forgets its registrations, and releases all waiting threads.
    pub(crate) fn let_go(&self, arena: VirtRange) {
        // A child that was forked without our knowledge may keep the file open, and with it the registrations.
        let _ = self.uffd.unregister(arena);
        self.uffd.get_ref().give_up_for(&self.wake);
    }
}

fn open_memory() -> cowslip_sys::Result<(ReservedFd, FileIdentity)> {
    let file = ReservedFd::open(|| procfs::open_self("mem"))?;
    let identity = FileIdentity::from_fd(file.as_fd())?;
    Ok((file, identity))
}

fn outside_stack() -> Result<OwnSpace, Errno> {
    let space = OwnSpace::reserve_apart(OUTSIDE_STACK_BYTES, page_size_bytes())?;
    // The first page catches an overflow.
    let page = page_size_bytes();
    let usable = VirtRange::between(space.start + page, space.end());
    space.part(usable).map_anonymous(Prot::RW).map(|()| space)
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
        let failed = slot.running.take_if(|running| running.service.has_failed());
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

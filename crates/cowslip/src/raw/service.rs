//! The service thread of an arena, where other code decides when it may start and thaw.

use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::process;
use cowslip_sys::units::VirtRange;

use super::RawArena;
use crate::arena::inheritance::youngest_read;
use crate::arena::readers::Generations;
use crate::service::{Running, Service};
use crate::thaw::{rest, serve};

/// The descriptors and the address space of a service thread to come ([`RawArena::park_service`]): a thread with fewer rights
/// may not get them.
#[derive(Debug)]
pub struct ParkedService(Service);

/// Has the service threads call `gives_back` now and then while the program rests, to have its allocator return freed
/// memory. It may wait for locks and use arenas, as any function of the program. The first one that is given stays.
pub fn call_at_rest(gives_back: fn()) {
    rest::call(gives_back);
}

/// True if a service thread gives memory back in an allocator, which a fork waits for in vain after some time.
pub fn is_any_at_rest() -> bool {
    rest::is_any_away()
}

impl RawArena<'_> {
    /// Starts the arena's service thread, if userfaultfd is available and wanted. A freeze does so by itself; before a
    /// [`PreparedFork`](super::PreparedFork) it must be asked for, where starting a thread is safe. True if it runs
    /// now.
    pub fn start_service(&self) -> bool {
        serve::ensure(self.shared())
    }

    /// Ends the service thread, and waits for it. If all memory has left and no child or view shows what it was, also drops
    /// the state for later freezes, so that forks make no call for this arena.
    pub fn retire(&self) {
        let shared = self.shared();
        let running = {
            let _locked = shared.lock();
            shared.services.take()
        };
        running.into_iter().for_each(Running::stop);
        let mut state = shared.lock();
        // The tokens of living readers are all that keeps the memory they read, and so are the numbers of views.
        let has_views = state.generations.view_count() > 0;
        if state.is_empty() && !has_views && youngest_read(shared, &mut state).is_none() {
            state.generations = Generations::default();
        }
    }

    /// Ends the service thread, and waits for it, before the only thread of a program changes its rights. `None` if
    /// there was none, or the descriptors of another are unavailable.
    ///
    /// ```
    /// use cowslip::{Arena, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(4))?;
    /// arena.raw().start_service();
    /// let parked = arena.raw().park_service();
    /// assert!(!arena.raw().has_service());
    /// // Now setresuid(2), capset(2), landlock_restrict_self(2), …
    /// if let Some(parked) = parked {
    ///     arena.raw().resume_service(parked);
    ///     assert!(arena.raw().has_service());
    /// }
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn park_service(&self) -> Option<ParkedService> {
        serve::park(self.shared()).map(ParkedService)
    }

    /// Starts another service thread, which has the rights that this thread has now.
    pub fn resume_service(&self, parked: ParkedService) {
        serve::resume(self.shared(), parked.0);
    }

    /// True if the service thread is one of this process' threads.
    pub fn has_service(&self) -> bool {
        let shared = self.shared();
        // A child that was forked by a system call of its own has the value without the thread.
        let is_ours = || shared.counters.pid.load(Relaxed) == process::pid() as u64;
        let _locked = shared.lock();
        shared.services.is_any() && is_ours()
    }

    /// Memory that the service thread has for itself, and that children lack.
    pub fn service_memory(&self) -> Option<VirtRange> {
        let shared = self.shared();
        let service = shared.service(&shared.lock())?;
        service.warm_page.range()
    }

    /// Keeps the arena's pages where they are from now on: the kernel or a device knows its page frames, by a
    /// registration that came too late to take that memory out of the arena ([`Self::detach`]). Children get copies,
    /// views are refused.
    ///
    /// ```
    /// use cowslip::{Arena, ErrorKind, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(4))?;
    /// arena.raw().pin();
    /// assert_eq!(arena.freeze().unwrap_err().kind(), ErrorKind::Busy);
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn pin(&self) {
        self.shared().lock().is_pinned = true;
    }

    /// Makes the service thread call `asks` before each thaw. If it returns true, the kernel or a device may know page
    /// frames of the arena: nothing is thawed for now, and it asks again. `asks` must not wait for anything, nor touch
    /// an arena.
    pub fn ask_before_thaws(&self, asks: fn() -> bool) {
        self.shared().lock().ask_before_thaw = Some(asks);
    }

    /// Stops the thaw after its current chunk, until [`Self::resume_thaw`].
    pub fn pause_thaw(&self) {
        self.shared().lock().is_thaw_paused = true;
    }

    /// Lets the thaw go on.
    pub fn resume_thaw(&self) {
        let shared = self.shared();
        let mut state = shared.lock();
        state.is_thaw_paused = false;
        shared.notify(&state);
    }
}

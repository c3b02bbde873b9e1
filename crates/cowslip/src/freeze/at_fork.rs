#![allow(unsafe_code)]
//! Takes arenas along in every fork of the process, by any caller of `fork(3)`: an interpreter, a server, a library.
//!
//! ```text
//!   prepare: list locked, signals blocked, arenas prepared ──fork──▶ in parent: in_parent, signals, unlocked
//!                                                              └───▶ in child:  in_child,  signals, unlocked
//! ```
//! `pthread_atfork(3)` cannot refuse a fork. Where the arenas cannot be frozen their memory is left to the kernel,
//! which copies it like any other; where that fails too, the child is without them.
//!
//! # Safety
//! [`PENDING`] is touched only by the thread that holds the lock of [`INSTALLED`], from the prepare handler to the parent's
//! or child's: by itself, and by its copy in the child.

use core::cell::{Cell, UnsafeCell};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::process::{self, BlockedSignals};

use super::fork::PreparedFork;
use super::serve;
use crate::arena::{Arena, Handle};
use crate::raw::Departure;

/// The arenas that every fork takes along.
struct Installed {
    arenas: Vec<Weak<Handle>>,
    is_registered: bool,
}

static INSTALLED: Mutex<Installed> =
    Mutex::new(Installed { arenas: Vec::new(), is_registered: false });

/// State of a fork under way, in the order in which it is dropped.
struct Pending {
    fork: Option<PreparedFork<'static>>,
    /// Borrowed by `fork`.
    arenas: Vec<Arena>,
    _installed: MutexGuard<'static, Installed>,
    _signals: BlockedSignals,
}

struct PendingCell(UnsafeCell<Option<Pending>>);

// SAFETY: see the module.
unsafe impl Sync for PendingCell {}

static PENDING: PendingCell = PendingCell(UnsafeCell::new(None));

thread_local! {
    /// True while this thread is in [`super::fork()`], which prepares the arenas that it was given.
    static IS_OWN_FORK: Cell<bool> = const { Cell::new(false) };
}

/// Calls `fork` without the handlers' help, in parent and child.
pub(super) fn without_handlers<T>(fork: impl FnOnce() -> T) -> T {
    let outer = IS_OWN_FORK.replace(true);
    let answer = fork();
    IS_OWN_FORK.set(outer);
    answer
}

impl Arena {
    /// Makes every later `fork(3)` of this process take the arena along, like [`fork`](super::fork()): for code that
    /// does not call that itself, such as an interpreter's `os.fork` or a server that forks its workers. It holds until
    /// the arena ends; children do the same when they fork.
    ///
    /// A freeze of it that fails cannot refuse the fork: the arena's memory is left to the kernel then
    /// ([`Departure::Refused`]), which copies it at the same cost in time and page tables as any other.
    ///
    /// # Errors
    /// The system's, if it cannot register another handler (`pthread_atfork(3)`).
    ///
    /// ```
    /// use cowslip::{Arena, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// arena.install_at_fork()?;
    /// // From now on: os.fork(), gunicorn, celery, …
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn install_at_fork(&self) -> Result<()> {
        let mut installed = lock();
        if !installed.is_registered {
            process::at_fork(prepare, in_parent, in_child)
                .during("have every fork take the arena along")?;
            installed.is_registered = true;
        }
        installed.arenas.retain(|arena| arena.strong_count() > 0);
        let this = Arc::downgrade(&self.handle);
        if !installed.arenas.iter().any(|arena| arena.ptr_eq(&this)) {
            installed.arenas.push(this);
        }
        Ok(())
    }
}

fn lock() -> MutexGuard<'static, Installed> {
    INSTALLED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

extern "C" fn prepare() {
    if IS_OWN_FORK.get() {
        return;
    }
    let installed = lock();
    let living = installed.arenas.iter().filter_map(Weak::upgrade);
    let arenas: Vec<Arena> = living.map(|handle| Arena { handle }).collect();
    for arena in &arenas {
        serve::ensure(arena.shared());
    }
    let signals = BlockedSignals::enter();
    let fork = prepare_or_leave(&arenas);
    // SAFETY: it borrows from the handles that `arenas` shares, which are dropped after it.
    let fork =
        unsafe { mem::transmute::<Option<PreparedFork<'_>>, Option<PreparedFork<'static>>>(fork) };
    let pending = Pending { fork, arenas, _installed: installed, _signals: signals };
    // SAFETY: see the module.
    unsafe { *PENDING.0.get() = Some(pending) };
}

fn prepare_or_leave(arenas: &[Arena]) -> Option<PreparedFork<'_>> {
    let all: Vec<&Arena> = arenas.iter().collect();
    let left = |error: Error| {
        if error.kind() == ErrorKind::Usage {
            // The code that would take memory out of the arena allocates in it.
            return Err(error);
        }
        let mut owned = all.iter().filter(|arena| !arena.raw().is_reader());
        owned.try_for_each(|arena| arena.raw().detach_live(Departure::Refused))?;
        PreparedFork::prepare(&all)
    };
    PreparedFork::prepare(&all).or_else(left).ok()
}

fn take_pending() -> Option<Pending> {
    if IS_OWN_FORK.get() {
        return None;
    }
    // SAFETY: see the module.
    unsafe { (*PENDING.0.get()).take() }
}

extern "C" fn in_parent() {
    end(PreparedFork::in_parent);
}

extern "C" fn in_child() {
    end(PreparedFork::in_child);
}

fn end(tell: fn(PreparedFork<'static>)) {
    let Some(mut pending) = take_pending() else { return };
    pending.fork.take().into_iter().for_each(tell);
    // An arena that was given up meanwhile ends here.
    pending.arenas.clear();
}

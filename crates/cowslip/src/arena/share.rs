//! Watches children, and sets the share of a processor that they get.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, TryLockError};

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::{Errno, process, scheduling};

use super::Arena;
use super::child::{Child, NONE, Yielding};
use super::state::Shared;
use crate::freeze::Frozen;
use crate::plan::settings::children::MOST_ENDS;
use crate::timing::Stopwatch;

/// The watched children.
pub(crate) fn watched(shared: &Shared) -> MutexGuard<'_, Vec<Arc<Child>>> {
    shared.children.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Like [`watched`], if their lock is free: a thread that forks takes it, and must not be held up by waking a waiter.
pub(crate) fn try_watched(shared: &Shared) -> Option<MutexGuard<'_, Vec<Arc<Child>>>> {
    match shared.children.try_lock() {
        Ok(children) => Some(children),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Watches the child `pid`, forked just now.
pub(crate) fn watch(shared: &Shared, pid: i32) {
    let mut children = watched(shared);
    let ends = children.iter().filter(|child| child.end.is_some()).count();
    let open = || ReservedFd::open(|| process::pidfd(pid)).ok();
    let end = if ends < MOST_ENDS { open() } else { None };
    let yielding = match shared.child_share.0.load(Relaxed) {
        NONE => None,
        share_percent => {
            let (since_fork, is_idle) = (Stopwatch::start(), AtomicBool::new(false));
            Some(Yielding { share_percent, since_fork, is_idle })
        }
    };
    if end.is_some() || yielding.is_some() {
        children.push(Arc::new(Child { pid, end, yielding, view: None }));
    }
}

/// Keeps a view until the child `pid` has ended, which the service thread is told.
pub(crate) fn keep(shared: &Shared, pid: i32, view: Frozen) -> Result<()> {
    const OPERATION: &str = "keep a view for a child";
    let end = ReservedFd::open(|| process::pidfd(pid)).during(OPERATION)?;
    let child = Child { pid, end: Some(end), yielding: None, view: Some(view) };
    watched(shared).push(Arc::new(child));
    shared.notify(&shared.lock());
    Ok(())
}

/// Calls `with` with the view that is kept for the child `pid`.
pub(crate) fn with_kept<T>(
    shared: &Shared,
    pid: i32,
    with: impl FnOnce(&Frozen) -> T,
) -> Option<T> {
    let children = watched(shared).clone();
    let mut views = children.iter().filter(|child| child.pid == pid);
    views.find_map(|child| child.view.as_ref()).map(with)
}

impl Arena {
    /// Makes children that the program forks from now on give way to it: each runs while a processor has nothing else
    /// to do (`SCHED_IDLE`, `sched(7)`), and like others while it has had less than `percent` (1 to 100) of one since
    /// it was forked. With `None` they run as they are. This is for children that save beside a program that serves: it
    /// is disturbed less, and they take longer, up to 100 / `percent` times as long as alone, in which more pages are
    /// written and copied.
    ///
    /// It applies to a child's first thread; threads that it starts begin in its state. A child forked within 10 ms of
    /// another fork runs as it is, and a child that outlives this process stays as it was last.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if an idle child could not be made to run like others again, which takes `CAP_SYS_NICE` or
    /// a limit `RLIMIT_NICE` that lets this process be less nice than it is; [`ErrorKind::Usage`] for another
    /// percentage.
    ///
    /// ```
    /// use cowslip::{Arena, ErrorKind, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(4))?;
    /// match arena.set_child_cpu_share(Some(25)) {
    ///     Ok(()) => {}
    ///     Err(error) => assert_eq!(error.kind(), ErrorKind::Denied),
    /// }
    /// assert_eq!(arena.set_child_cpu_share(Some(101)).unwrap_err().kind(), ErrorKind::Usage);
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn set_child_cpu_share(&self, percent: Option<u8>) -> Result<()> {
        const OPERATION: &str = "have children give way";
        if percent.is_some_and(|percent| !(1..=100).contains(&percent)) {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .because("the share must be 1 to 100 percent"));
        }
        if percent.is_some() && !scheduling::may_end_idle() {
            return Err(Error::from_errno(OPERATION, Errno::PERM)
                .advise("give it CAP_SYS_NICE, or LimitNICE=-1 in a systemd unit"));
        }
        self.shared().child_share.0.store(percent.unwrap_or(NONE), Relaxed);
        Ok(())
    }
}

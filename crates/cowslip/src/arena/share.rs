//! Children that give way to the program and still get their share of a processor.
//!
//! Processor time that a program leaves is mostly enough for a child that saves, and to the kernel a processor that
//! runs nothing but idle threads is free for any thread that wakes up. On a machine that is busy throughout there may
//! be nothing left, for ever. The service thread therefore looks at a child's processor time since its fork:
//!
//! ```text
//!               has had less than its share
//!        idle ──────────────────────────────▶ ordinary
//!          ▲                                     │
//!          └──────────── has had it ─────────────┘
//! ```
//! A child is ordinary at first, and stays so if its parent ends before the first look, as a daemon's does.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::Duration;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::{Errno, process, scheduling};

use super::Arena;
use super::state::Shared;

/// The most children with a descriptor to wait for their end. The end of others is noticed by a look at the readers.
const MOST_ENDS: usize = 2;

/// Time between two looks of the service thread at children that give way.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

const NONE: u8 = 0;

/// The least share of a processor, in percent, for children of an arena's program.
#[derive(Debug, Default)]
pub(crate) struct Share(AtomicU8);

/// A child that is watched.
#[derive(Debug)]
pub(crate) struct Child {
    pid: i32,
    /// Readable when it has ended.
    pub(crate) end: Option<ReservedFd>,
    yielding: Option<Yielding>,
}

#[derive(Debug)]
struct Yielding {
    share_percent: u8,
    forked_ns: u64,
    is_idle: AtomicBool,
}

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
            let (forked_ns, is_idle) = (process::now_ns(), AtomicBool::new(false));
            Some(Yielding { share_percent, forked_ns, is_idle })
        }
    };
    if end.is_some() || yielding.is_some() {
        children.push(Arc::new(Child { pid, end, yielding }));
    }
}

impl Child {
    /// True if it is looked at now and then.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.yielding.is_some()
    }

    /// Asks the kernel whether it has ended, where nothing else reports it.
    pub(crate) fn has_ended(&self) -> bool {
        !process::is_running_child(self.pid)
    }

    /// Lets it run like its parent, or only while a processor is idle, by the time that it has had. True if there is a
    /// reason to go on watching it.
    pub(crate) fn set_turn(&self, shared: &Shared) -> bool {
        let Some(it) = &self.yielding else { return true };
        let passed_ns = process::now_ns() - it.forked_ns;
        if passed_ns < LOOK.as_nanos() as u64 {
            return true;
        }
        // Its pid is its own until it is waited for; then it may be another process'.
        if self.has_ended() {
            return false;
        }
        let Ok(used_ns) = process::cpu_ns_of(self.pid) else { return true };
        let idle = has_had_share(used_ns, passed_ns, it.share_percent);
        if it.is_idle.load(Relaxed) != idle && scheduling::set_idle(self.pid, idle).is_ok() {
            it.is_idle.store(idle, Relaxed);
            shared.counters.child_turns.fetch_add(1, Relaxed);
        }
        true
    }
}

fn has_had_share(used_ns: u64, passed_ns: u64, share_percent: u8) -> bool {
    u128::from(used_ns) * 100 >= u128::from(passed_ns) * u128::from(share_percent)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_time_since_the_fork() {
        let second_ns = 1_000_000_000;
        assert!(has_had_share(second_ns / 4, second_ns, 25));
        assert!(!has_had_share(second_ns / 4 - 1, second_ns, 25));
        assert!(has_had_share(2 * second_ns, second_ns, 100), "two threads");
        assert!(!has_had_share(u64::MAX / 100, u64::MAX, 2), "centuries");
    }
}

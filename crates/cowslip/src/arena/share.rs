//! Children that give way to the program, and get their share of a processor all the same.
//!
//! What a program leaves of the processors is enough for a child that saves, mostly, and to the kernel a processor that
//! runs nothing but idle threads is free for whoever wakes up. But on a machine that is busy throughout there may be
//! nothing left, for ever. So the service thread looks what a child has had since it was forked:
//!
//! ```text
//!               has had less than its share
//!        idle ──────────────────────────────▶ ordinary
//!          ▲                                     │
//!          └──────────── has had it ─────────────┘
//! ```
//! A child is ordinary at first, and stays so if its parent ends before anybody looked, as a daemon's does.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::Duration;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::{Errno, process, scheduling};

use super::Arena;
use super::state::Shared;

/// So many ends of children are waited for, each with a descriptor. Those of others are noticed by a look at the readers.
const MOST_ENDS: usize = 2;

/// So often the service thread looks at children that give way.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

const NONE: u8 = 0;

/// What children of an arena's program get, percent of a processor, at least.
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

/// The children that are watched.
pub(crate) fn watched(shared: &Shared) -> MutexGuard<'_, Vec<Arc<Child>>> {
    shared.children.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// As [`watched`], if nobody has them: who forks does, and is not to be held up by waking whoever waits.
pub(crate) fn try_watched(shared: &Shared) -> Option<MutexGuard<'_, Vec<Arc<Child>>>> {
    match shared.children.try_lock() {
        Ok(children) => Some(children),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Has the child `pid`, forked just now, looked at.
pub(crate) fn watch(shared: &Shared, pid: i32) {
    let mut children = watched(shared);
    let ends = children.iter().filter(|child| child.end.is_some()).count();
    let end = if ends < MOST_ENDS { process::pidfd(pid).ok().map(ReservedFd::hold) } else { None };
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
    /// It is looked at now and then.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.yielding.is_some()
    }

    /// Asks the kernel, where nothing else tells.
    pub(crate) fn has_ended(&self) -> bool {
        !process::is_running_child(self.pid)
    }

    /// Lets it run as its parent does, or when nobody else does, by what it has had. Whether there is a reason to go on
    /// watching it.
    pub(crate) fn settle(&self, shared: &Shared) -> bool {
        let Some(it) = &self.yielding else { return true };
        let passed_ns = process::now_ns() - it.forked_ns;
        if passed_ns < LOOK.as_nanos() as u64 {
            return true;
        }
        // Its number is its own until it was waited for; then it may be a stranger's.
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

    /// In a child of the same parent, which does not watch it.
    pub(crate) fn in_child(&self, shares_descriptors: bool) {
        let give_up =
            if shares_descriptors { ReservedFd::leave_open } else { ReservedFd::close_early };
        self.end.iter().for_each(give_up);
    }
}

fn has_had_share(used_ns: u64, passed_ns: u64, share_percent: u8) -> bool {
    u128::from(used_ns) * 100 >= u128::from(passed_ns) * u128::from(share_percent)
}

impl Arena {
    /// Has children that the program forks from now on give way to it: each runs while a processor has nothing else
    /// to do (`SCHED_IDLE`, `sched(7)`), and like others while it has had less than `percent` (1 to 100) of one since it
    /// was forked. `None` has them run as they are. For children that save beside a program that serves: it is disturbed
    /// less, and they take longer, up to 100 / `percent` times as long as alone, in which more pages are written
    /// and copied.
    ///
    /// It is about a child's first thread; threads that it starts begin as that one is. What is forked within 10 ms of
    /// another fork runs as it is, and so does what outlives this process, as it was last.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if what is idle could not be made to run like others again, which takes `CAP_SYS_NICE`
    /// or a limit `RLIMIT_NICE` that lets this process be less nice than it is; [`ErrorKind::Usage`] for another percentage.
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

#![allow(unsafe_code)]
//! When and where threads run (`sched(7)`).
//!
//! # Safety
//! The calls take thread ids and plain values; what they change is undone by those who asked for it.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{Errno, Result, process};

/// Whether more threads want to run than there are processors for this one, by `/proc/loadavg`
/// (`proc_loadavg(5)`); where that cannot be read, no.
pub fn is_crowded() -> bool {
    let running = process::proc_field::<u32>("loadavg", 3, '/');
    let processors = rustix::thread::sched_getaffinity(None).ok().map(|set| set.count());
    running.zip(processors).is_some_and(|(running, processors)| running > processors)
}

/// Whether this thread has the ordinary scheduling policy (`SCHED_OTHER`).
pub fn is_ordinary() -> bool {
    // SAFETY: sched_getscheduler(2) takes a thread id and answers with a number.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) == i64::from(libc::SCHED_OTHER) }
}

/// Lets the thread `thread` (0: this one) run before every ordinary one (`SCHED_FIFO`, `sched(7)`), or
/// no longer. Threads that it starts inherit it. `EPERM` without `CAP_SYS_NICE` or a limit `RLIMIT_RTPRIO`.
pub fn set_urgent(thread: i32, urgent: bool) -> Result<()> {
    let (policy, priority) = if urgent { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: sched_setscheduler(2) reads the parameter it is pointed to.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(process::last_errno()),
    }
}

/// Lets ordinary threads run before this one, which is in less of a hurry, from now on (`setpriority(2)`, which is of
/// one thread on Linux): `by` is added to its niceness. Not `SCHED_IDLE`: on a machine that is busy that may take
/// for ever.
pub fn give_way(by: u8) {
    const NICEST: i32 = 19;
    // Best effort: who is that patient already may not be less so.
    let niceness = rustix::process::getpriority_process(None).unwrap_or(0);
    let niceness = (niceness + i32::from(by)).min(NICEST);
    let _ = rustix::process::setpriority_process(None, niceness);
}

/// The processor that this thread runs on just now.
pub fn current_processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// The processors that a thread may run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processors(CpuSet);

impl Processors {
    /// Those of the thread `thread` of this process (0: the calling one): `sched_getaffinity(2)`.
    ///
    /// # Errors
    /// `EINVAL` on a machine of more than 1,024 processors; `ESRCH` if there is no such thread.
    pub fn of(thread: i32) -> Result<Self> {
        sched_getaffinity(Pid::from_raw(thread)).map(Self)
    }

    /// One alone; `EINVAL` for one beyond the first 1,024.
    pub fn only(processor: usize) -> Result<Self> {
        if processor >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL);
        }
        let mut set = CpuSet::new();
        set.set(processor);
        Ok(Self(set))
    }

    /// All that a thread's control group allows, also those that it allows later: the kernel remembers a set that it
    /// was given, and holds to it.
    pub fn every() -> Self {
        let mut set = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|processor| set.set(processor));
        Self(set)
    }

    /// Lets the thread `thread` run on these, and on no others (`sched_setaffinity(2)`).
    ///
    /// # Errors
    /// `EINVAL` if it may run on none of them; `ESRCH` if there is no such thread.
    ///
    /// ```
    /// use cowslip_sys::scheduling::{Processors, current_processor};
    ///
    /// let before = Processors::of(0)?;
    /// let here = current_processor();
    /// Processors::only(here)?.assign(0)?;
    /// assert_eq!(current_processor(), here);
    /// before.assign(0)?;
    /// # Ok::<(), cowslip_sys::Errno>(())
    /// ```
    pub fn assign(&self, thread: i32) -> Result<()> {
        sched_setaffinity(Pid::from_raw(thread), &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_it_may_and_everywhere_again() {
        let before = Processors::of(0).unwrap();
        let last = (0..CpuSet::MAX_CPU).rfind(|&processor| before.0.is_set(processor)).unwrap();
        Processors::only(last).unwrap().assign(0).unwrap();
        assert_eq!(current_processor(), last);
        assert_eq!(Processors::of(0), Processors::only(last));
        Processors::every().assign(0).unwrap();
        assert!(
            (0..CpuSet::MAX_CPU)
                .all(|it| !before.0.is_set(it) || Processors::of(0).unwrap().0.is_set(it))
        );
        assert_eq!(Processors::only(CpuSet::MAX_CPU), Err(Errno::INVAL));
        assert_eq!(Processors::of(i32::MAX), Err(Errno::SRCH));
    }
}

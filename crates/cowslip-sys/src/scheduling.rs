#![allow(unsafe_code)]
//! When and where threads run (`sched(7)`).
//!
//! # Safety
//! The calls take thread ids and plain values; what they change is undone by those who asked for it.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{Result, process};

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

/// Lets ordinary threads run before this one, which is in no hurry, from now on (`setpriority(2)`, which
/// is of one thread on Linux). Not `SCHED_IDLE`: on a machine that is busy that may take for ever.
pub fn yield_to_others() {
    const NICE: i32 = 10;
    // Best effort: who is that patient already may not be less so.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// The processor that this thread runs on just now.
pub fn current_processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// A thread that runs on one processor (`sched_setaffinity(2)`) until this is dropped.
#[derive(Debug)]
pub struct Pinned {
    thread: Option<Pid>,
    to: CpuSet,
    before: CpuSet,
}

impl Pinned {
    /// Keeps the thread `thread` of this process (0: the calling one) on one processor.
    ///
    /// # Errors
    /// `EINVAL` if it may not run there, or on a machine of more than 1,024 processors; `ESRCH` if there is no
    /// such thread.
    ///
    /// ```
    /// use cowslip_sys::scheduling::{Pinned, current_processor};
    ///
    /// let here = current_processor();
    /// let pinned = Pinned::to(0, here)?;
    /// assert_eq!(current_processor(), here);
    /// drop(pinned);
    /// # Ok::<(), cowslip_sys::Errno>(())
    /// ```
    pub fn to(thread: i32, processor: usize) -> Result<Self> {
        let thread = Pid::from_raw(thread);
        let before = sched_getaffinity(thread)?;
        let mut to = CpuSet::new();
        if processor >= CpuSet::MAX_CPU {
            return Err(crate::Errno::INVAL);
        }
        to.set(processor);
        if to != before {
            sched_setaffinity(thread, &to)?;
        }
        Ok(Self { thread, to, before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Self { thread, to, before } = *self;
        // Or somebody else has placed it since.
        if to == before || sched_getaffinity(thread) != Ok(to) {
            return;
        }
        // The kernel remembers a set that it was given, and holds to it when the thread's control group gets more
        // processors later. Who was not restricted is to be so again.
        let mut every = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|processor| every.set(processor));
        if sched_setaffinity(thread, &every).is_err() || sched_getaffinity(thread) != Ok(before) {
            let _ = sched_setaffinity(thread, &before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_let_go_as_it_was() {
        let before = sched_getaffinity(None).unwrap();
        let last = (0..CpuSet::MAX_CPU).rfind(|&processor| before.is_set(processor)).unwrap();
        let pinned = Pinned::to(0, last).unwrap();
        assert_eq!(current_processor(), last);
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        drop(pinned);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn who_was_restricted_is_so_again_and_who_was_placed_since_stays() {
        let all = sched_getaffinity(None).unwrap();
        let allowed = |processor: &usize| all.is_set(*processor);
        let mut processors = (0..CpuSet::MAX_CPU).filter(allowed);
        let (Some(first), Some(second)) = (processors.next(), processors.next()) else {
            return println!("SKIPPED: two processors: this thread may run on one only");
        };
        let only = |processor| {
            let mut set = CpuSet::new();
            set.set(processor);
            set
        };
        sched_setaffinity(None, &only(first)).unwrap();
        let same = Pinned::to(0, first).unwrap();
        drop(same);
        assert_eq!(sched_getaffinity(None).unwrap(), only(first));

        let elsewhere = Pinned::to(0, second).unwrap();
        drop(elsewhere);
        assert_eq!(sched_getaffinity(None).unwrap(), only(first));

        let pinned = Pinned::to(0, second).unwrap();
        sched_setaffinity(None, &all).unwrap();
        drop(pinned);
        assert_eq!(sched_getaffinity(None).unwrap(), all);
        assert_eq!(Pinned::to(0, CpuSet::MAX_CPU).err(), Some(crate::Errno::INVAL));
    }
}

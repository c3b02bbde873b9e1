#![allow(unsafe_code)]
//! When and where threads run (`sched(7)`).
//!
//! # Safety
//! The calls take thread ids and plain values; the callers undo their changes.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{Errno, Result, procfs};

/// The longest slice that the kernel grants (`kernel/sched/syscalls.c`).
const LONGEST_SLICE_NS: u64 = 100_000_000;

/// Returns true if more threads want to run than this one has processors, by `/proc/loadavg`
/// (`proc_loadavg(5)`); false where that cannot be read.
pub fn is_crowded() -> bool {
    let running = procfs::own::field_of::<u32>("loadavg", 3, '/');
    let processors = rustix::thread::sched_getaffinity(None).ok().map(|set| set.count());
    running.zip(processors).is_some_and(|(running, processors)| running > processors)
}

/// Returns true if this thread has the ordinary scheduling policy (`SCHED_OTHER`).
pub fn is_ordinary() -> bool {
    // SAFETY: sched_getscheduler(2) takes a thread id and returns a number.
    unsafe {
        crate::passthrough::by_number()(libc::SYS_sched_getscheduler, 0)
            == i64::from(libc::SCHED_OTHER)
    }
}

/// Lets the thread `thread` (0: this one) run before every ordinary one (`SCHED_FIFO`, `sched(7)`), or resets it to
/// ordinary. Threads that it starts inherit it. `EPERM` without `CAP_SYS_NICE` or a limit `RLIMIT_RTPRIO`.
pub fn set_urgent(thread: i32, urgent: bool) -> Result<()> {
    let (policy, priority) = if urgent { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: sched_setscheduler(2) reads the parameter behind the pointer.
    match unsafe {
        crate::passthrough::by_number()(
            libc::SYS_sched_setscheduler,
            thread,
            policy,
            &raw const param,
        )
    } {
        0 => Ok(()),
        _ => Err(crate::errno::last()),
    }
}

/// Lets the thread `thread` (0: this one) run only while a processor has nothing else to do (`SCHED_IDLE`, `sched(7)`),
/// or resets it to ordinary. The kernel treats a processor that runs only idle threads as free for a waking thread; a
/// merely nice thread is in the way.
///
/// # Errors
/// `EPERM` when it resets a thread to ordinary and [`may_end_idle`] is false; `ESRCH` if there is none.
pub fn set_idle(thread: i32, idle: bool) -> Result<()> {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: sched_setscheduler(2) reads the parameter behind the pointer.
    match unsafe {
        crate::passthrough::by_number()(
            libc::SYS_sched_setscheduler,
            thread,
            policy,
            &raw const param,
        )
    } {
        0 => Ok(()),
        _ => Err(crate::errno::last()),
    }
}

/// Returns true if this process may reset an idle thread of its user to ordinary. It tries: the kernel requires the
/// same privilege as for lowering a thread's niceness, `CAP_SYS_NICE` or a limit `RLIMIT_NICE`.
pub fn may_end_idle() -> bool {
    let Ok(niceness) = rustix::process::getpriority_process(None) else { return false };
    let is_less = rustix::process::setpriority_process(None, niceness - 1).is_ok();
    // Raising the niceness is always allowed.
    let _ = rustix::process::setpriority_process(None, niceness);
    is_less
}

/// The scheduling of a thread: its policy, niceness or priority, and slice.
#[derive(Clone, Copy)]
pub struct Scheduling(libc::sched_attr);

impl Scheduling {
    /// The scheduling of the thread `thread` (0: this one): `sched_getattr(2)`; `ESRCH` if there is
    /// none.
    pub fn from_thread(thread: i32) -> Result<Self> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attributes: libc::sched_attr = unsafe { core::mem::zeroed() };
        let size = size_of::<libc::sched_attr>();
        // SAFETY: sched_getattr(2) writes at most `size` bytes through the pointer.
        let answer = unsafe {
            crate::passthrough::by_number()(
                libc::SYS_sched_getattr,
                thread,
                &raw mut attributes,
                size,
                0,
            )
        };
        if answer == 0 { Ok(Self(attributes)) } else { Err(crate::errno::last()) }
    }

    /// The same for a thread that does not mind waiting: with the longest slice, a thread that wakes up meanwhile goes
    /// first and need not wait for its end. It takes effect with the ordinary policy, from Linux 6.12 on.
    pub fn patient(mut self) -> Self {
        self.0.sched_runtime = LONGEST_SLICE_NS;
        self
    }

    /// Applies it to the thread `thread` (`sched_setattr(2)`).
    ///
    /// # Errors
    /// `EPERM` if it needs a privilege that the thread lacks; `ESRCH` if there is none.
    ///
    /// ```
    /// use cowslip_sys::scheduling::Scheduling;
    ///
    /// Scheduling::from_thread(0)?.patient().assign(0)?;
    /// # Ok::<(), cowslip_sys::Errno>(())
    /// ```
    pub fn assign(&self, thread: i32) -> Result<()> {
        // SAFETY: sched_setattr(2) reads as many bytes as the attributes' size field says, which the kernel filled in:
        // no more than there are.
        match unsafe {
            crate::passthrough::by_number()(libc::SYS_sched_setattr, thread, &raw const self.0, 0)
        } {
            0 => Ok(()),
            _ => Err(crate::errno::last()),
        }
    }
}

impl core::fmt::Debug for Scheduling {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let libc::sched_attr { sched_policy, sched_nice, sched_priority, sched_runtime, .. } =
            self.0;
        f.debug_struct("Scheduling")
            .field("policy", &sched_policy)
            .field("nice", &sched_nice)
            .field("priority", &sched_priority)
            .field("slice_ns", &sched_runtime)
            .finish()
    }
}

/// Lets ordinary threads run before this less urgent one from now on (`setpriority(2)`, which on Linux applies to one
/// thread): adds `by` to its niceness. Not `SCHED_IDLE`: on a busy machine its work may never finish.
pub fn give_way(by: u8) {
    const NICEST: i32 = 19;
    // Best effort: a thread that is already that nice cannot become less so.
    let niceness = rustix::process::getpriority_process(None).unwrap_or(0);
    let niceness = (niceness + i32::from(by)).min(NICEST);
    let _ = rustix::process::setpriority_process(None, niceness);
}

/// The processor that this thread runs on now.
pub fn current_processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// The processors that a thread may run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processors(CpuSet);

impl Processors {
    /// The processors of the thread `thread` (0: the calling one):
    /// `sched_getaffinity(2)`.
    ///
    /// # Errors
    /// `EINVAL` on a machine with more than 1,024 processors; `ESRCH` if there is no such thread.
    pub fn from_thread(thread: i32) -> Result<Self> {
        sched_getaffinity(Pid::from_raw(thread)).map(Self)
    }

    /// A single one; `EINVAL` beyond the first 1,024.
    pub fn only(processor: usize) -> Result<Self> {
        if processor >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL);
        }
        let mut set = CpuSet::new();
        set.set(processor);
        Ok(Self(set))
    }

    /// All that a thread's control group allows, including those that it allows later: the kernel remembers the
    /// requested set and applies it again.
    pub fn every() -> Self {
        let mut set = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|processor| set.set(processor));
        Self(set)
    }

    /// Lets the thread `thread` run on these processors only (`sched_setaffinity(2)`).
    ///
    /// # Errors
    /// `EINVAL` if it may run on none of them; `ESRCH` if there is no such thread.
    ///
    /// ```
    /// use cowslip_sys::scheduling::{Processors, current_processor};
    ///
    /// let before = Processors::from_thread(0)?;
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
    fn who_was_urgent_for_a_while_is_as_patient_as_before() {
        let before = Scheduling::from_thread(0).unwrap();
        before.patient().assign(0).unwrap();
        let patient = Scheduling::from_thread(0).unwrap();
        // Linux before 6.12 does not support slices.
        assert!([0, LONGEST_SLICE_NS].contains(&patient.0.sched_runtime), "{patient:?}");
        match set_urgent(0, true) {
            Ok(()) => assert!(!is_ordinary()),
            Err(errno) => assert_eq!(errno, Errno::PERM),
        }
        patient.assign(0).unwrap();
        assert!(is_ordinary());
        assert_eq!(Scheduling::from_thread(0).unwrap().0.sched_runtime, patient.0.sched_runtime);
        assert_eq!(Scheduling::from_thread(0).unwrap().0.sched_nice, before.0.sched_nice);
        assert_eq!(Scheduling::from_thread(i32::MAX).unwrap_err(), Errno::SRCH);
    }

    #[test]
    fn who_is_idle_runs_as_before_where_that_is_permitted() {
        // Runs in a thread of its own, which may have to stay idle.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let niceness = Scheduling::from_thread(0).unwrap().0.sched_nice;
                let may = may_end_idle();
                assert_eq!(Scheduling::from_thread(0).unwrap().0.sched_nice, niceness);
                set_idle(0, true).unwrap();
                let policy = || Scheduling::from_thread(0).unwrap().0.sched_policy as i32;
                assert_eq!(policy(), libc::SCHED_IDLE);
                if may {
                    set_idle(0, false).unwrap();
                    assert_eq!(policy(), libc::SCHED_OTHER);
                }
                assert_eq!(Scheduling::from_thread(0).unwrap().0.sched_nice, niceness);
            });
        });
        assert_eq!(set_idle(i32::MAX, true), Err(Errno::SRCH));
    }

    #[test]
    fn a_thread_runs_where_it_may_and_everywhere_again() {
        let before = Processors::from_thread(0).unwrap();
        let last = (0..CpuSet::MAX_CPU).rfind(|&processor| before.0.is_set(processor)).unwrap();
        Processors::only(last).unwrap().assign(0).unwrap();
        assert_eq!(current_processor(), last);
        assert_eq!(Processors::from_thread(0), Processors::only(last));
        Processors::every().assign(0).unwrap();
        assert!((0..CpuSet::MAX_CPU).all(|processor| {
            !before.0.is_set(processor) || Processors::from_thread(0).unwrap().0.is_set(processor)
        }));
        assert_eq!(Processors::only(CpuSet::MAX_CPU), Err(Errno::INVAL));
        assert_eq!(Processors::from_thread(i32::MAX), Err(Errno::SRCH));
    }
}

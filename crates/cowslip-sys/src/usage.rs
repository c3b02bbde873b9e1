#![allow(unsafe_code)]
//! Resources that a child or this process used (`wait4(2)`, `getrusage(2)`).
//!
//! # Safety
//! The kernel writes plain structures that live in this frame.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::Result;
use crate::errno;

/// The resources that a process and the children that it waited for used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in kernel mode.
    pub system: Duration,
    /// Faults answered without reading from a device.
    pub minor_faults: u64,
    /// Faults that read from a device.
    pub major_faults: u64,
    /// The largest resident memory that one of these processes ever had.
    pub max_resident_bytes: u64,
    /// How often a thread gave up its processor to wait.
    pub voluntary_switches: u64,
    /// How often a processor was taken away.
    pub involuntary_switches: u64,
}

/// Waits for the child `pid` to end; returns its exit status and its usage. `ECHILD`: it is no child, or has already
/// been waited for.
pub fn wait(pid: i32) -> Result<(ExitStatus, Usage)> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: wait4 writes an int and a rusage through the two pointers; a rusage of zeroes is valid.
    let (waited, usage) = unsafe {
        let waited = libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr());
        (waited, usage.assume_init())
    };
    if waited < 0 {
        return Err(errno::last());
    }
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    let usage = Usage {
        user: time(usage.ru_utime),
        system: time(usage.ru_stime),
        minor_faults: usage.ru_minflt as u64,
        major_faults: usage.ru_majflt as u64,
        max_resident_bytes: (usage.ru_maxrss as u64) << 10,
        voluntary_switches: usage.ru_nvcsw as u64,
        involuntary_switches: usage.ru_nivcsw as u64,
    };
    Ok((ExitStatus::from_raw(status), usage))
}

/// Faults of all threads of this process, including those that have ended. Never less than at an earlier call.
/// Allocates nothing.
pub fn faults() -> Result<u64> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes a rusage through the pointer; a rusage of zeroes is valid.
    let (answer, usage) = unsafe {
        let answer = libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        (answer, usage.assume_init())
    };
    if answer < 0 { Err(errno::last()) } else { Ok((usage.ru_minflt + usage.ru_majflt) as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;

    #[test]
    fn a_child_has_its_status_and_its_faults_and_is_waited_for_once() {
        let mut child = std::process::Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let pid = child.id() as i32;
        let (status, usage) = wait(pid).unwrap();
        assert_eq!(status.code(), Some(7));
        assert!(usage.minor_faults > 10 && usage.max_resident_bytes > 100 << 10, "{usage:?}");
        assert_eq!(wait(pid), Err(Errno::CHILD));
        assert!(child.wait().is_err());
    }

    #[test]
    fn faults_of_a_thread_count_though_it_has_ended() {
        const PAGES: u64 = 100;
        let before = faults().unwrap();
        let touch = || {
            let page = crate::memory::map_shared_page().unwrap();
            // SAFETY: the page is new, and belongs to this closure.
            unsafe { (page.start as *mut u8).write_volatile(1) };
            // SAFETY: nothing refers to it any more.
            unsafe { crate::memory::unmap(page) }.unwrap();
        };
        std::thread::spawn(move || (0..PAGES).for_each(|_| touch())).join().unwrap();
        assert!(faults().unwrap() >= before + PAGES);
    }
}

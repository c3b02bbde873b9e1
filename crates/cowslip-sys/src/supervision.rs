#![allow(unsafe_code)]
//! Calls for a process that forks copies of a program and answers for them.
//!
//! # Safety
//! Signals' actions are read and set in the form of `sigaction(2)`; everything else takes and returns plain values.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use std::ffi::CString;
use std::os::fd::FromRawFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, Signal};

use crate::{AsRawFd, Errno, OwnedFd, Result, passthrough, process};

/// Above the standard streams.
const FIRST_FREE: i32 = 3;

/// The program's settings that a supervisor of its copies changes.
pub struct Former {
    name: CString,
    child_action: libc::sigaction,
}

/// Makes this process, forked from a program, a supervisor: the leader of a session of its own, away from the program's
/// terminal, with this name. Its ended children stay until they are reaped, regardless of the program's own action for
/// them.
pub fn become_supervisor(name: &CStr) -> Result<Former> {
    rustix::process::setsid()?;
    let former = rustix::thread::name()?;
    rustix::thread::set_name(name)?;
    let mut before = MaybeUninit::uninit();
    // SAFETY: a zeroed action is the default one, with no flags; sigaction(2) writes the former one if it succeeds.
    unsafe {
        let mut default: libc::sigaction = core::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        match libc::sigaction(libc::SIGCHLD, &raw const default, before.as_mut_ptr()) {
            0 => Ok(Former { name: former, child_action: before.assume_init() }),
            _ => Err(crate::errno::last()),
        }
    }
}

impl Former {
    /// Restores them in a copy, which is the program again.
    pub fn restore(&self) {
        let _ = rustix::thread::set_name(&self.name);
        // SAFETY: an action that the kernel returned; its handler, if it has one, is the program's.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &raw const self.child_action, core::ptr::null_mut())
        };
    }
}

/// A descriptor that becomes readable when a child has ended and can be reaped (`signalfd(2)`): `SIGCHLD` must be
/// blocked.
pub fn ended_children() -> Result<OwnedFd> {
    /// The size of the kernel's set of signals.
    const SET_BYTES: usize = size_of::<u64>();
    let set = 1u64 << (libc::SIGCHLD - 1);
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: signalfd4(2) reads the set, of the given size, and makes a descriptor.
    let answer = unsafe {
        passthrough::by_number()(libc::SYS_signalfd4, -1, &raw const set, SET_BYTES, flags)
    };
    match i32::try_from(answer) {
        // SAFETY: made just now, and without another owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(crate::errno::last()),
    }
}

/// Empties [`ended_children`]; [`next_ended`] finds the children that ended.
pub fn drain(ended: &OwnedFd) {
    let mut about = [0u8; size_of::<libc::signalfd_siginfo>()];
    while rustix::io::read(ended, &mut about[..]).is_ok_and(|length| length > 0) {}
}

/// Reaps a child that has ended: its number and wait status; `None` if there is none.
pub fn next_ended() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: waitpid writes the status to the place it is given.
    match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
        pid if pid > 0 => Some((pid, status)),
        _ => None,
    }
}

/// Has this process killed when its parent `parent` ends. `ESRCH` if it has ended already.
pub fn end_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if process::parent_pid() == parent { Ok(()) } else { Err(Errno::SRCH) }
}

/// Makes the process `pid`, this one or a child of it, the leader of a group of its own.
pub fn lead_group(pid: i32) -> Result<()> {
    let pid = Pid::from_raw(pid);
    rustix::process::setpgid(pid, pid)
}

/// Sends a signal to all processes of the group that `leader` leads.
pub fn signal_group(leader: i32, signal: i32) -> Result<()> {
    if leader <= 1 {
        return Err(Errno::SRCH);
    }
    // SAFETY: kill(2) takes plain numbers.
    match unsafe { passthrough::by_number()(libc::SYS_kill, -leader, signal) } {
        0 => Ok(()),
        _ => Err(crate::errno::last()),
    }
}

/// The same open file, at a number above the standard streams'.
pub fn above_streams(fd: OwnedFd) -> Result<OwnedFd> {
    if fd.as_raw_fd() >= FIRST_FREE { Ok(fd) } else { fcntl_dupfd_cloexec(&fd, FIRST_FREE) }
}

/// Replaces the standard streams by these files, all of them at numbers [above](above_streams) those.
pub fn replace_streams(files: &[OwnedFd; 3]) -> Result<()> {
    for (number, file) in files.iter().enumerate() {
        // SAFETY: the file at that number is the one to be replaced.
        if unsafe { passthrough::dup3(file.as_raw_fd(), number as i32, 0) } < 0 {
            return Err(crate::errno::last());
        }
    }
    Ok(())
}

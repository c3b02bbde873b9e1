#![allow(unsafe_code)]
//! What a process needs that forks copies of a program, and answers for them.
//!
//! # Safety
//! Signals' actions are read and set as `sigaction(2)` has them; everything else takes and returns plain values.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use std::ffi::CString;
use std::os::fd::FromRawFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, Signal};

use crate::{AsRawFd, Errno, OwnedFd, Result, passthrough, process};

/// Above the standard streams.
const FIRST_FREE: i32 = 3;

/// What the program has otherwise than a supervisor of its copies.
pub struct Former {
    name: CString,
    child_action: libc::sigaction,
}

/// Makes this process, forked from a program, a supervisor: the leader of a session of its own, away from the program's
/// terminal, by this name, whose ended children wait to be asked for, whatever the program does about them.
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
            _ => Err(process::last_errno()),
        }
    }
}

impl Former {
    /// In a copy, which is the program again.
    pub fn restore(&self) {
        let _ = rustix::thread::set_name(&self.name);
        // SAFETY: an action that the kernel gave us, whose handler, if it has one, is the program's.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &raw const self.child_action, core::ptr::null_mut())
        };
    }
}

/// A descriptor that can be read while the end of a child is to be asked for (`signalfd(2)`): `SIGCHLD` must be blocked.
pub fn ended_children() -> Result<OwnedFd> {
    /// Of the kernel's set of signals.
    const SET_BYTES: usize = size_of::<u64>();
    let set = 1u64 << (libc::SIGCHLD - 1);
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: signalfd4(2) reads the set, of the size that it is told, and makes a descriptor.
    let answer = unsafe {
        passthrough::by_number()(libc::SYS_signalfd4, -1, &raw const set, SET_BYTES, flags)
    };
    match i32::try_from(answer) {
        // SAFETY: made just now, and nobody else's.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(process::last_errno()),
    }
}

/// Takes from [`ended_children`] what it says; what ended is found by [`next_ended`].
pub fn drain(ended: &OwnedFd) {
    let mut about = [0u8; size_of::<libc::signalfd_siginfo>()];
    while rustix::io::read(ended, &mut about[..]).is_ok_and(|length| length > 0) {}
}

/// A child that has ended, and its wait status; `None` if none has that was not asked for.
pub fn next_ended() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: waitpid writes the status to the place it is given.
    match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
        pid if pid > 0 => Some((pid, status)),
        _ => None,
    }
}

/// Has this process killed when `parent` ends, its parent. `ESRCH` if it has.
pub fn end_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if process::parent_pid() == parent { Ok(()) } else { Err(Errno::SRCH) }
}

/// Has the process `pid`, this one or a child of it, lead a group of its own.
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
        _ => Err(process::last_errno()),
    }
}

/// The same open file, at a number above the standard streams'.
pub fn above_streams(fd: OwnedFd) -> Result<OwnedFd> {
    if fd.as_raw_fd() >= FIRST_FREE { Ok(fd) } else { fcntl_dupfd_cloexec(&fd, FIRST_FREE) }
}

/// Puts these files, all of them at numbers [above](above_streams), in the place of the standard streams.
pub fn replace_streams(files: &[OwnedFd; 3]) -> Result<()> {
    for (number, file) in files.iter().enumerate() {
        // SAFETY: what is at that number is what this is asked to replace.
        if unsafe { passthrough::dup3(file.as_raw_fd(), number as i32, 0) } < 0 {
            return Err(process::last_errno());
        }
    }
    Ok(())
}

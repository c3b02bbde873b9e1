#![allow(unsafe_code)]
//! Prepares a program that waits before it runs: events can be opened for it before its first instruction.
//!
//! # Safety
//! Between fork and exec the child only makes system calls, on memory that existed before the fork.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::{AsRawFd, Errno, OwnedFd, Result, executable, process};

/// A child that executes a program when told; if dropped before, it ends without executing it.
#[derive(Debug)]
pub struct Program {
    pid: i32,
    go: Option<OwnedFd>,
    refusal: OwnedFd,
}

impl Program {
    /// Forks a child for `command`, a program (searched for in `PATH`) and its arguments.
    ///
    /// # Errors
    /// `ENOENT` if there is no such program, `EACCES` if it may not be executed.
    pub fn prepare(command: &[OsString]) -> Result<Self> {
        let path = std::env::var_os("PATH");
        let program = executable::find(command.first().ok_or(Errno::INVAL)?, path.as_deref())?;
        let text = |word: &OsStr| CString::new(word.as_bytes()).map_err(|_| Errno::INVAL);
        let program = text(program.as_os_str())?;
        let arguments = command.iter().map(|word| text(word)).collect::<Result<Vec<_>>>()?;
        let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
        pointers.push(core::ptr::null());
        let (wait, go) = pipe_with(PipeFlags::CLOEXEC)?;
        let (refusal, refuse) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: the child continues in `run`, which respects the limits of a child.
        match unsafe { process::fork() }? {
            0 => {
                drop(go);
                run(&program, &pointers, &wait, &refuse)
            }
            pid => Ok(Self { pid, go: Some(go), refusal }),
        }
    }

    /// The number of the child, before and after it executes the program.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Makes it execute the program, and returns once it does.
    ///
    /// # Errors
    /// The errors of `execve(2)`.
    pub fn start(&mut self) -> Result<()> {
        let Some(go) = self.go.take() else { return Ok(()) };
        rustix::io::write(&go, &[1])?;
        let mut errno = [0u8; 4];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.refusal, &mut errno[..]))? {
            0 => Ok(()),
            _ => Err(Errno::from_raw_os_error(i32::from_ne_bytes(errno))),
        }
    }

    /// Its exit status; `None` if it has not ended. The status is returned once: afterwards another process may have
    /// its number.
    pub fn status(&self) -> Result<Option<ExitStatus>> {
        let mut status = 0;
        // SAFETY: waitpid writes the status to the place it is given.
        match unsafe { libc::waitpid(self.pid, &mut status, libc::WNOHANG) } {
            -1 => Err(crate::errno::last()),
            0 => Ok(None),
            _ => Ok(Some(ExitStatus::from_raw(status))),
        }
    }

    /// Asks it to end (`SIGTERM`).
    pub fn end(&self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.go.take().is_some() {
            let _ = process::wait_for(self.pid);
        }
    }
}

fn run(
    program: &CString,
    arguments: &[*const libc::c_char],
    wait: &OwnedFd,
    refuse: &OwnedFd,
) -> ! {
    let mut byte = 0u8;
    // SAFETY: these are system calls on buffers and strings that outlive them; `arguments` ends with null. The runtime
    // ignores SIGPIPE, which the program must not inherit.
    unsafe {
        loop {
            match libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1) {
                1 => break,
                -1 if *libc::__errno_location() == libc::EINTR => {}
                _ => libc::_exit(127),
            }
        }
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execv(program.as_ptr(), arguments.as_ptr());
        let errno = *libc::__errno_location();
        libc::write(refuse.as_raw_fd(), (&raw const errno).cast(), 4);
        libc::_exit(127)
    }
}

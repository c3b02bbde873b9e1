//! Children of every kind: their use of the memory that they were forked with, and their ends.
#![allow(unsafe_code)]

use std::ffi::CString;

use cowslip::Arena;

use super::{fork_child, status_of};

/// The behaviour of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Checks and ends.
    Checks,
    /// Has a child of its own check.
    HasAChild,
    /// Asks the library for a child of its own.
    ForksWithArenas,
    /// Closes every descriptor, then checks.
    ClosesAll,
    /// Checks, and ends like a C program.
    CallsExit,
    /// Checks, then becomes another program.
    Execs,
    /// Waits to be killed.
    Waits,
}

pub const KINDS: [Kind; 7] = [
    Kind::Checks,
    Kind::HasAChild,
    Kind::ForksWithArenas,
    Kind::ClosesAll,
    Kind::CallsExit,
    Kind::Execs,
    Kind::Waits,
];

/// A running child.
#[derive(Debug)]
pub struct Child {
    kind: Kind,
    pid: i32,
}

impl Child {
    pub fn fork(
        arena: &Arena,
        kind: Kind,
        mut check: impl FnMut() -> bool,
    ) -> cowslip::Result<Self> {
        let program = CString::new("/bin/true").expect("no zero");
        let pid = fork_child(&[arena], || match kind {
            Kind::Checks => check(),
            Kind::HasAChild => in_a_fork(check),
            Kind::ForksWithArenas => {
                fork_child(&[arena], check).is_ok_and(|pid| status_of(pid) == 0)
            }
            Kind::ClosesAll => {
                close_all();
                check()
            }
            Kind::CallsExit => {
                let code = i32::from(!check());
                // SAFETY: the same as in a C program; nothing of ours runs at exit.
                unsafe { libc::exit(code) }
            }
            Kind::Execs => {
                let argv = [program.as_ptr(), std::ptr::null()];
                // SAFETY: both end with a null pointer, and the string outlives the call.
                check() && unsafe { libc::execv(program.as_ptr(), argv.as_ptr()) } == 0
            }
            Kind::Waits => wait_for_ever(),
        })?;
        Ok(Self { kind, pid })
    }

    /// Ends it if it does not end by itself, and returns true if its memory was right.
    pub fn ends_right(self) -> bool {
        if self.kind == Kind::Waits {
            kill(self.pid);
            return status_of(self.pid) == libc::SIGKILL;
        }
        status_of(self.pid) == 0
    }
}

/// Runs `check` in a child of this process that the library does not know of.
pub fn in_a_fork(check: impl FnOnce() -> bool) -> bool {
    match plain_fork() {
        0 => cowslip_sys::process::exit_now(i32::from(!check())),
        pid => pid > 0 && status_of(pid) == 0,
    }
}

/// `fork(2)`: 0 in the child.
pub fn plain_fork() -> i32 {
    // SAFETY: the children here touch memory, make system calls, and end.
    unsafe { libc::fork() }
}

pub fn close_all() {
    // SAFETY: this process uses no descriptor any more.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
}

pub fn kill(pid: i32) {
    // SAFETY: kill(2) of a process that the test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

pub fn wait_for_ever() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

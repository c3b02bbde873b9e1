//! Another program: the ways to start it, and its actions.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::Ordering::Relaxed;

use super::{FAILED, Me, SKIP};
use crate::program::Call;
use crate::shared::shared;
use crate::sys;
use crate::words::{self, Content, PAGE};

impl Me {
    pub(super) fn exec(&mut self) -> Option<()> {
        // The loader opens libraries.
        if !self.may_open {
            return SKIP;
        }
        shared().totals.calls.fetch_add(1, Relaxed);
        exec_leaf();
        self.fail(&format!("execve: errno {}", sys::errno()))
    }

    /// Starts another program, with the memory shared until it runs.
    pub(super) fn spawn(&mut self, call: &Call) -> Option<()> {
        if !self.may_open {
            return SKIP;
        }
        let mut pid = 0;
        shared().totals.processes.fetch_add(1, Relaxed);
        let made = match call.word(0) {
            // Like `vfork`, which cannot be called from Rust.
            "vfork" => {
                extern "C" fn run(_: *mut c_void) -> c_int {
                    exec_leaf();
                    sys::leave(super::FAILED)
                }
                self.on_own_stack(run, null_mut(), libc::CLONE_VM | libc::CLONE_VFORK)
                    .map(|made| pid = made as i32)
            }
            _ => {
                let [path, leaf] = LEAF;
                let arguments = [path.as_ptr(), leaf.as_ptr(), null()];
                // SAFETY: strings and a list that end with a zero.
                let error = unsafe {
                    let file = arguments[0];
                    let arguments = arguments.as_ptr().cast();
                    libc::posix_spawn(&mut pid, file, null(), null(), arguments, libc::environ)
                };
                sys::nonzero(error).map(|_| ())
            }
        };
        if let Err(errno) = made {
            self.fail(&format!("spawn: errno {errno}"));
        }
        self.waited(pid);
        Some(())
    }
}

const LEAF: [&core::ffi::CStr; 2] = [c"/proc/self/exe", c"leaf"];

fn exec_leaf() {
    let [path, leaf] = LEAF;
    let arguments = [path.as_ptr(), leaf.as_ptr(), null()];
    // SAFETY: strings and a list that end with a zero.
    unsafe { libc::execv(path.as_ptr(), arguments.as_ptr()) };
}

/// The other program: fills its own memory, and forks.
pub(crate) fn leaf() -> bool {
    const PAGES: usize = 256;
    let Ok(at) = sys::mmap(0, PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE, 0) else {
        return false;
    };
    let of = |page: usize| words::seed(0, 0, 0, page);
    (0..PAGES).for_each(|page| words::write(at + page * PAGE, of(page)));
    let holds = |page: usize| {
        words::wrong(&words::read(at + page * PAGE), Content::Seed(of(page))).is_none()
    };
    match sys::fork() {
        Ok(0) => sys::leave(if (0..PAGES).all(holds) { 0 } else { FAILED }),
        Ok(pid) => (0..PAGES).all(holds) && sys::wait(pid as i32) == Ok(0),
        Err(_) => false,
    }
}

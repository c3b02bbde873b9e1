//! Settings that a process was started with, and that Rust's runtime changes before `main`: it ignores SIGPIPE, and opens
//! `/dev/null` at each closed standard descriptor. A program that takes the place of this process has them back.
//!
//! [`note`] has to run before the runtime: as an entry of `.init_array`.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);
static IS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Notes the settings.
pub extern "C" fn note() {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `action` has room for what the kernel writes, and is read only if it did.
    let ignores = unsafe {
        libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    };
    IGNORES_SIGPIPE.store(ignores, Relaxed);
    for (number, is_closed) in IS_CLOSED.iter().enumerate() {
        // SAFETY: it only asks for the flags of a descriptor.
        is_closed.store(unsafe { libc::fcntl(number as i32, libc::F_GETFD) } < 0, Relaxed);
    }
}

/// Has a command start its program with the settings.
pub fn give_back(command: &mut Command) {
    let give_back = || {
        // SAFETY: no handler is set. The descriptors are those that the runtime opened: the next moment has another program,
        // or none.
        unsafe {
            if IGNORES_SIGPIPE.load(Relaxed) {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            for (number, _) in
                IS_CLOSED.iter().enumerate().filter(|(_, closed)| closed.load(Relaxed))
            {
                libc::close(number as i32);
            }
        }
        Ok(())
    };
    // SAFETY: it makes system calls alone.
    unsafe { command.pre_exec(give_back) };
}

//! Threads: how they start, how they end, and how they are joined.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::{Me, SKIP};
use crate::program::Call;
use crate::shared::THREADS;
use crate::sys::{self, nonzero};
use crate::words::PAGE;

pub(super) const STACK: usize = 1 << 20;

pub(crate) struct Started {
    pub(crate) number: usize,
    handle: libc::pthread_t,
    stack: &'static str,
    at: usize,
    /// Its state, which the thread that joins it takes over.
    me: *mut Me,
}

/// Threads of this process.
pub(super) static ALIVE: AtomicUsize = AtomicUsize::new(1);

/// A child has one thread and no timer.
pub(super) fn forget_in_child(me: &mut Me) {
    ALIVE.store(1, Ordering::Relaxed);
    // The stack stays: it may be in use.
    me.signals = None;
}

impl Me {
    pub(super) fn start(&mut self, call: &Call) -> Option<()> {
        let number = call.number(0);
        let is_there = self.threads.iter().any(|thread| thread.number == number);
        if !self.may_allocate || number == 0 || number >= THREADS || is_there || self.thread != 0 {
            return SKIP;
        }
        let stack = call.word(1);
        let mut at = 0;
        let mut child = Box::new(Self::new(self.setting, self.process, number));
        child.may_open = self.may_open;
        let child = Box::into_raw(child);
        ALIVE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: all zeroes are a valid start for attributes; the stack belongs to the thread until it is
        // joined.
        let (made, handle) = unsafe {
            let mut attributes: libc::pthread_attr_t = zeroed();
            libc::pthread_attr_init(&mut attributes);
            match stack {
                "mapped" => {
                    let mapped = sys::mmap(0, STACK, libc::PROT_READ | libc::PROT_WRITE, 0);
                    at = mapped.unwrap_or_else(|e| self.fail(&format!("mmap: errno {e}")));
                }
                "allocated" => {
                    let mut block = null_mut();
                    let made = libc::posix_memalign(&mut block, PAGE, STACK);
                    self.expect("posix_memalign", nonzero(made), Ok(0));
                    at = block as usize;
                }
                _ => {}
            }
            if at != 0 {
                let set = libc::pthread_attr_setstack(&mut attributes, at as *mut c_void, STACK);
                self.expect("pthread_attr_setstack", nonzero(set), Ok(0));
            }
            let mut handle = 0;
            let made = sys::create_thread(&mut handle, &attributes, thread_main, child.cast());
            libc::pthread_attr_destroy(&mut attributes);
            (made, handle)
        };
        self.expect("pthread_create", made, Ok(0));
        self.threads.push(Started { number, handle, stack, at, me: child });
        Some(())
    }

    /// Ends the thread here, in this way.
    pub(super) fn retire(&mut self, call: &Call) -> Option<()> {
        self.retires = Some(call.word(0));
        Some(())
    }

    /// Ends the first thread of a process: the other threads continue, and the process ends with the last of
    /// them.
    pub(super) fn retire_first(&mut self) -> ! {
        self.end_thread();
        // `pthread_exit` would unwind Rust's `main`, which is not allowed.
        sys::exit_thread()
    }

    /// Waits for a thread, and takes over its regions.
    pub(super) fn join(&mut self, number: usize) -> Option<()> {
        let index = self.threads.iter().position(|thread| thread.number == number)?;
        let thread = self.threads.remove(index);
        // SAFETY: the thread has not been joined; once it has ended it no longer uses its `Me`, which `start`
        // made.
        let theirs = unsafe {
            let joined = libc::pthread_join(thread.handle, null_mut());
            self.expect("pthread_join", nonzero(joined), Ok(0));
            Box::from_raw(thread.me)
        };
        match thread.stack {
            "mapped" => self.expect("munmap", sys::munmap(thread.at, STACK), Ok(0)),
            // SAFETY: the block is from `posix_memalign`, and no longer used.
            "allocated" => unsafe { libc::free(thread.at as *mut c_void) },
            _ => {}
        }
        self.regions.extend(theirs.regions);
        Some(())
    }
}

extern "C-unwind" fn thread_main(me: *mut c_void) -> *mut c_void {
    // SAFETY: only this thread uses it until it has ended.
    let thread = unsafe { &mut *me.cast::<Me>() };
    thread.run();
    thread.end_thread();
    ALIVE.fetch_sub(1, Ordering::Relaxed);
    match thread.retires {
        None => null_mut(),
        Some("exit") => sys::exit_thread(),
        // SAFETY: no frame of this thread has a value left to drop.
        Some(_) => unsafe { pthread_exit(null_mut()) },
    }
}

unsafe extern "C-unwind" {
    fn pthread_exit(value: *mut c_void) -> !;
}

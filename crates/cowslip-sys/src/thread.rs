#![allow(unsafe_code)]
//! Threads that never allocate by themselves.
//!
//! A thread of the standard library registers a destructor when it starts, for which libc allocates, in the new thread,
//! with the program's allocator: in a process where only one thread should ever use that allocator, two then do.
//!
//! Its stack lies [apart](crate::memory::reserve_apart): libc would put it where the program has just unmapped memory.
//!
//! # Safety
//! A thread owns its closure, which it receives as a pointer to a box. The value that holds its handle joins or
//! detaches it at most once. Its stack belongs to it until it is joined, and is kept for ever if it is not.

use core::ffi::{CStr, c_void};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::failpoints::{self, Op};
use crate::memory::{self, Prot};
use crate::units::{VirtRange, page_size_bytes, round_up};
use crate::{Errno, Result, process};

/// A number of threads, below the number of their process: a forked child has none of its parent's.
#[derive(Debug, Default)]
pub struct ThreadCount(AtomicU64);

impl ThreadCount {
    /// No thread.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts one more.
    pub fn add(&self) {
        self.change(|count| count + 1);
    }

    /// Counts one less.
    pub fn remove(&self) {
        self.change(|count| count.saturating_sub(1));
    }

    /// The number of threads of this process.
    pub fn get(&self) -> u64 {
        Self::of_process(process::pid() as u64, self.0.load(SeqCst))
    }

    /// In a forked child: forgets the threads of other processes. A descendant may get the number of an ancestor that
    /// has ended.
    fn forget_others(&self) {
        let pid = process::pid() as u64;
        let _ = self.0.fetch_update(SeqCst, SeqCst, |word| (word >> 32 != pid).then_some(0));
    }

    fn change(&self, change: fn(u64) -> u64) {
        let pid = process::pid() as u64;
        let changed = |word| Some(pid << 32 | change(Self::of_process(pid, word)));
        let _ = self.0.fetch_update(SeqCst, SeqCst, changed);
    }

    fn of_process(pid: u64, word: u64) -> u64 {
        if word >> 32 == pid { word & u64::from(u32::MAX) } else { 0 }
    }
}

static LIVING: ThreadCount = ThreadCount::new();

/// The number of threads of this process that [`Thread::start`] has started. It never counts one that does not live.
pub fn ours() -> u64 {
    LIVING.get()
}

/// A stack, above a guard of a page.
fn map_stack(bytes: usize) -> Result<VirtRange> {
    let page = page_size_bytes();
    let len = round_up(bytes, page).ok_or(Errno::NOMEM)?;
    let whole = memory::reserve_apart(page + len, page)?;
    // SAFETY: reserved just now, for this stack alone.
    unsafe { memory::protect(VirtRange::new(whole.start + page, len), Prot::RW) }
        .inspect_err(|_| unmap_stack(whole))?;
    Ok(whole)
}

fn unmap_stack(whole: VirtRange) {
    // SAFETY: made by `map_stack`, and used by no thread, or no longer. It stays if that fails.
    let _ = unsafe { memory::unmap(whole) };
}

/// A thread of this process; dropped by another thread, it is detached.
#[derive(Debug)]
pub struct Thread {
    handle: libc::pthread_t,
    stack: VirtRange,
}

impl Thread {
    /// Starts a thread that does `work`, with this name (at most 15 bytes are kept) and a stack of at least this size.
    /// A panic in it ends the process.
    ///
    /// # Errors
    /// `EAGAIN` if there is no memory for a stack, or there are too many threads; `EINVAL` if the stack is too
    /// small (`pthread_create(3)`, `pthread_attr_setstack(3)`).
    ///
    /// ```
    /// use std::sync::mpsc;
    ///
    /// let (tell, told) = mpsc::channel();
    /// let thread = cowslip_sys::thread::Thread::start(c"example", 256 << 10, move || tell.send(7).unwrap())?;
    /// thread.join();
    /// assert_eq!(told.recv(), Ok(7));
    /// # Ok::<(), cowslip_sys::Errno>(())
    /// ```
    pub fn start<F>(name: &'static CStr, stack_bytes: usize, work: F) -> Result<Self>
    where
        F: FnOnce() + Send + 'static,
    {
        failpoints::check(Op::ThreadStart)?;
        let stack = map_stack(stack_bytes)?;
        let work = Box::into_raw(Box::new((name, work)));
        let mut handle = MaybeUninit::uninit();
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the attributes are initialised before they are used, and destroyed after; `begin::<F>` takes over the
        // box behind `work`. pthread_create writes the handle if it returns 0.
        let error = unsafe {
            libc::pthread_attr_init(attributes.as_mut_ptr());
            let lowest = stack.start + page_size_bytes();
            let mut error = libc::pthread_attr_setstack(
                attributes.as_mut_ptr(),
                lowest as *mut c_void,
                stack.end() - lowest,
            );
            if error == 0 {
                let work = work.cast();
                error = libc::pthread_create(
                    handle.as_mut_ptr(),
                    attributes.as_ptr(),
                    begin::<F>,
                    work,
                );
            }
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            error
        };
        if error != 0 {
            // SAFETY: no thread was started, so the box is still ours.
            drop(unsafe { Box::from_raw(work) });
            unmap_stack(stack);
            return Err(Errno::from_raw_os_error(error));
        }
        // SAFETY: pthread_create returned 0.
        Ok(Self { handle: unsafe { handle.assume_init() }, stack })
    }

    /// Returns true for the calling thread.
    pub fn is_current(&self) -> bool {
        // SAFETY: both handles belong to threads that have not been joined yet.
        unsafe { libc::pthread_equal(self.handle, libc::pthread_self()) != 0 }
    }

    /// Waits until it has ended.
    pub fn join(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: not joined or detached yet; neither can happen again, because `self` is not
        // dropped.
        if unsafe { libc::pthread_join(this.handle, ptr::null_mut()) } == 0 {
            unmap_stack(this.stack);
        }
    }

    /// Forgets the thread in a forked child, where it does not exist.
    pub fn forget_in_child(self) {
        LIVING.forget_others();
        let _ = ManuallyDrop::new(self);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // The process' last thread runs the program's exit handlers when it has ended for libc, which would free what
        // it knows of a detached thread, while the thread goes on.
        if !self.is_current() {
            // SAFETY: not joined or detached yet.
            unsafe { libc::pthread_detach(self.handle) };
        }
    }
}

extern "C" fn begin<F: FnOnce()>(work: *mut c_void) -> *mut c_void {
    // SAFETY: `start` passes a box of this type, and gives it up.
    let (name, work) = *unsafe { Box::from_raw(work.cast::<(&'static CStr, F)>()) };
    let _ = rustix::thread::set_name(name);
    LIVING.add();
    work();
    // libc's work at the end of a process's last thread counts as that of a program's thread.
    LIVING.remove();
    ptr::null_mut()
}

#![allow(unsafe_code)]
//! Threads that never allocate by themselves.
//!
//! A thread of the standard library registers a destructor when it starts, for which libc allocates, in
//! the new thread, with the allocator of the program: a process of which only one thread should ever use that
//! allocator then has two.
//!
//! Its stack lies [apart](crate::memory::reserve_apart): libc would put it where the program has unmapped something.
//!
//! # Safety
//! A thread owns its closure, which it is handed as a pointer to a box. Its handle is joined or detached
//! once, by the value that holds it. Its stack is its own until it was joined, and stays for ever if it is detached.

use core::ffi::{CStr, c_void};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::failpoints::{self, Op};
use crate::memory::{self, Prot};
use crate::units::{VirtRange, page_size_bytes, round_up};
use crate::{Errno, Result, process};

/// How many there are, below the number of the process that they are in: a forked child has none of its parent's.
static LIVING: AtomicU64 = AtomicU64::new(0);

fn living(of_process: u64, word: u64) -> u64 {
    if word >> 32 == of_process { word & u64::from(u32::MAX) } else { 0 }
}

fn recount(change: fn(u64) -> u64) {
    let pid = process::pid() as u64;
    let _ =
        LIVING.fetch_update(Relaxed, Relaxed, |word| Some(pid << 32 | change(living(pid, word))));
}

/// How many threads of this process are such as [`Thread::start`] starts. None is counted that does not live.
pub fn ours() -> u64 {
    living(process::pid() as u64, LIVING.load(Relaxed))
}

/// A stack, above a guard of a page.
fn map_stack(bytes: usize) -> Result<VirtRange> {
    let page = page_size_bytes();
    let len = round_up(bytes, page).ok_or(Errno::NOMEM)?;
    let whole = memory::reserve_apart(page + len, page)?;
    // SAFETY: reserved just now, for this alone.
    unsafe { memory::protect(VirtRange::new(whole.start + page, len), Prot::RW) }
        .inspect_err(|_| unmap_stack(whole))?;
    Ok(whole)
}

fn unmap_stack(whole: VirtRange) {
    // SAFETY: made by `map_stack`, and used by no thread, or no more. It stays if that fails.
    let _ = unsafe { memory::unmap(whole) };
}

/// A thread of this process; dropped, it goes on by itself.
#[derive(Debug)]
pub struct Thread {
    handle: libc::pthread_t,
    stack: VirtRange,
}

impl Thread {
    /// Starts a thread that does `work`, with this name (at most 15 bytes are kept) and a stack of at least
    /// this size. A panic in it ends the process.
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
        // SAFETY: the attributes are initialised before they are used, and destroyed after; `begin::<F>` takes
        // what `work` points to. pthread_create writes the handle if it answers with 0.
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
            // SAFETY: no thread was started, so that the box is still ours.
            drop(unsafe { Box::from_raw(work) });
            unmap_stack(stack);
            return Err(Errno::from_raw_os_error(error));
        }
        // SAFETY: pthread_create answered with 0.
        Ok(Self { handle: unsafe { handle.assume_init() }, stack })
    }

    /// Whether this is the calling thread.
    pub fn is_current(&self) -> bool {
        // SAFETY: both handles are of threads that were not joined yet.
        unsafe { libc::pthread_equal(self.handle, libc::pthread_self()) != 0 }
    }

    /// Waits until it has ended.
    pub fn join(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: not joined or detached yet; neither will happen again, as `self` is not dropped.
        if unsafe { libc::pthread_join(this.handle, ptr::null_mut()) } == 0 {
            unmap_stack(this.stack);
        }
    }

    /// In a forked child, where the thread does not exist: forgets it.
    pub fn forget_in_child(self) {
        // A descendant may be given the number of an ancestor that is gone.
        let _ = LIVING.fetch_update(Relaxed, Relaxed, |word| {
            (word >> 32 != process::pid() as u64).then_some(0)
        });
        let _ = ManuallyDrop::new(self);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: not joined or detached yet.
        unsafe { libc::pthread_detach(self.handle) };
    }
}

extern "C" fn begin<F: FnOnce()>(work: *mut c_void) -> *mut c_void {
    // SAFETY: `start` passes a box of this type, and gives it up.
    let (name, work) = *unsafe { Box::from_raw(work.cast::<(&'static CStr, F)>()) };
    let _ = rustix::thread::set_name(name);
    recount(|living| living + 1);
    work();
    // What libc has the last thread of a process do, this one does as one of the program's.
    recount(|living| living.saturating_sub(1));
    ptr::null_mut()
}

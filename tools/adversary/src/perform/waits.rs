//! Waits for another thread, on words in the program's memory.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

use super::threads::ALIVE;
use super::{Me, SKIP};
use crate::model::Page;
use crate::program::Call;
use crate::sys::{self, nonzero};
use crate::words::PAGE;

impl Me {
    /// Waits for another thread, which may fork meanwhile, on a word in the program's memory.
    pub(super) fn futex(&mut self, call: &Call) -> Option<()> {
        let index = self.regions.iter().position(|region| region.id == call.number(0))?;
        let region = &self.regions[index];
        let page = region.span(call.number(1), 1, Page::writable)?.start;
        if !self.may_allocate || !region.pages[page].writable() {
            return SKIP;
        }
        let at = region.at(page);
        let (how, ms) = (call.word(3), call.number(2));
        let waker = Waker { me: self, at, how, ms, forks: call.word(4) == "forks" };
        // SAFETY: the page belongs to this thread and is writable: it has room for a semaphore, or for a
        // lock, a condition and a word. The waker uses it only until it is joined.
        unsafe {
            (at as *mut u8).write_bytes(0, PAGE);
            if how == "sem" {
                libc::sem_init(at as *mut libc::sem_t, 1, 0);
            }
            let mut handle = 0;
            let argument = (&raw const waker).cast_mut().cast();
            ALIVE.fetch_add(1, Ordering::Relaxed);
            let made = sys::create_thread(&mut handle, core::ptr::null(), wake_main, argument);
            self.expect("pthread_create", made, Ok(0));
            await_word(at, how);
            self.expect("pthread_join", nonzero(libc::pthread_join(handle, null_mut())), Ok(0));
        }
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        let seed = self.new_seed(page);
        crate::words::write(at, seed);
        self.regions[index].pages[page].content = crate::words::Content::Seed(seed);
        Some(())
    }
}

/// The thread that wakes the waiting one in [`Me::futex`].
struct Waker<'a> {
    me: &'a Me,
    at: usize,
    how: &'static str,
    ms: usize,
    forks: bool,
}

fn word(at: usize) -> &'static AtomicU32 {
    // SAFETY: the word is in the page that `futex` set aside, after the lock and the condition.
    unsafe { &*((at + PAGE / 2) as *const AtomicU32) }
}

fn futex_op(how: &str, op: c_int) -> c_int {
    if how == "private" { op | libc::FUTEX_PRIVATE_FLAG } else { op }
}

/// # Safety
/// `at` is a page that `futex` set aside.
unsafe fn await_word(at: usize, how: &str) {
    let (lock, condition) = (at as *mut libc::pthread_mutex_t, (at + PAGE / 4) as *mut _);
    // SAFETY: zeroes are a valid lock and condition, like those of `PTHREAD_*_INITIALIZER`.
    unsafe {
        match how {
            "sem" => while libc::sem_wait(at as *mut libc::sem_t) != 0 {},
            "cond" => {
                libc::pthread_mutex_lock(lock);
                while word(at).load(Ordering::SeqCst) == 0 {
                    libc::pthread_cond_wait(condition, lock);
                }
                libc::pthread_mutex_unlock(lock);
            }
            _ => {
                while word(at).load(Ordering::SeqCst) == 0 {
                    let _ = sys::futex(at + PAGE / 2, futex_op(how, libc::FUTEX_WAIT), 0);
                }
            }
        }
    }
}

extern "C-unwind" fn wake_main(waker: *mut c_void) -> *mut c_void {
    // SAFETY: `futex` waits for this thread before the waker ends.
    let Waker { me, at, how, ms, forks } = unsafe { &*waker.cast::<Waker<'_>>() };
    sys::pause(ms / 2);
    let child = forks.then(|| {
        me.helper(|| {
            sys::pause(*ms);
            true
        })
    });
    sys::pause(ms - ms / 2);
    let (lock, condition) = (*at as *mut libc::pthread_mutex_t, (*at + PAGE / 4) as *mut _);
    // SAFETY: see `await_word`.
    unsafe {
        match *how {
            "sem" => _ = libc::sem_post(*at as *mut libc::sem_t),
            "cond" => {
                libc::pthread_mutex_lock(lock);
                word(*at).store(1, Ordering::SeqCst);
                libc::pthread_cond_signal(condition);
                libc::pthread_mutex_unlock(lock);
            }
            _ => {
                word(*at).store(1, Ordering::SeqCst);
                let _ = sys::futex(*at + PAGE / 2, futex_op(how, libc::FUTEX_WAKE), 1);
            }
        }
    }
    if let Some(pid) = child {
        me.waited(pid);
    }
    null_mut()
}

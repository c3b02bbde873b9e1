//! Locks in the program's memory: the kernel itself writes their words, or finds them by the place of their
//! page.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use super::threads::ALIVE;
use super::{Me, SKIP};
use crate::model::Page;
use crate::program::Call;
use crate::sys::{self, nonzero};
use crate::words::{self, Content, PAGE};

/// Turns between two forks.
const TURNS: usize = 400;

/// Two threads that count under a lock.
struct Counting<'a> {
    me: &'a Me,
    at: usize,
    how: &'static str,
    times: usize,
    forks: bool,
}

impl Me {
    /// Counts together with another thread, each turn under a lock, or by the kernel (`FUTEX_WAKE_OP`).
    pub(super) fn locks(&mut self, call: &Call) -> Option<()> {
        let index = self.regions.iter().position(|region| region.id == call.number(0))?;
        let region = &self.regions[index];
        let page = region.span(call.number(1), 1, Page::writable)?.start;
        if !self.may_allocate || !region.pages[page].writable() {
            return SKIP;
        }
        let (at, how, times) = (region.at(page), call.word(3), call.number(2));
        let counting = Counting { me: self, at, how, times, forks: call.word(4) == "forks" };
        // SAFETY: the page belongs to this thread and is writable, with room for a lock and a number. The
        // other thread uses it only until it is joined.
        unsafe {
            (at as *mut u8).write_bytes(0, PAGE);
            if how != "wake-op" {
                self.expect("pthread_mutex_init", nonzero(make_lock(at, how)), Ok(0));
            }
            let mut handle = 0;
            let argument = (&raw const counting).cast_mut().cast();
            ALIVE.fetch_add(1, Ordering::Relaxed);
            let made = sys::create_thread(&mut handle, core::ptr::null(), count_main, argument);
            self.expect("pthread_create", made, Ok(0));
            Counting { forks: false, ..counting }.count();
            self.expect("pthread_join", nonzero(libc::pthread_join(handle, null_mut())), Ok(0));
        }
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        let counted = words::read(at)[number_index()] as u32 as usize;
        self.expect("two threads that count", Ok(counted), Ok(2 * times));
        let seed = self.new_seed(page);
        words::write(at, seed);
        self.regions[index].pages[page].content = Content::Seed(seed);
        Some(())
    }
}

fn number_index() -> usize {
    PAGE / 2 / size_of::<u64>()
}

/// # Safety
/// `at` has room for a lock.
unsafe fn make_lock(at: usize, how: &str) -> c_int {
    // SAFETY: all zeroes are a valid start for attributes.
    unsafe {
        let mut attributes: libc::pthread_mutexattr_t = zeroed();
        libc::pthread_mutexattr_init(&mut attributes);
        match how {
            "inherit" => {
                libc::pthread_mutexattr_setprotocol(&mut attributes, libc::PTHREAD_PRIO_INHERIT)
            }
            "shared" => {
                libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED)
            }
            _ => libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST),
        };
        libc::pthread_mutex_init(at as *mut libc::pthread_mutex_t, &attributes)
    }
}

extern "C-unwind" fn count_main(counting: *mut c_void) -> *mut c_void {
    // SAFETY: `locks` waits for this thread before the value ends.
    unsafe { (*counting.cast::<Counting<'_>>()).count() };
    null_mut()
}

impl Counting<'_> {
    /// # Safety
    /// `locks` prepared the page, and only its two threads use it.
    unsafe fn count(&self) {
        /// `FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_LT, 0)`
        const ADD_ONE: c_int = 1 << 28 | 2 << 24 | 1 << 12;
        let lock = self.at as *mut libc::pthread_mutex_t;
        let number = self.at + PAGE / 2;
        for turn in 0..self.times {
            if self.forks && turn % TURNS == 0 {
                let child = self.me.helper(|| true);
                self.me.waited(child);
            }
            if self.how == "wake-op" {
                self.me.expect("FUTEX_WAKE_OP", sys::wake_op(self.at, number, ADD_ONE), Ok(0));
                continue;
            }
            // SAFETY: the caller keeps the contract; the number is accessed only under the lock.
            unsafe {
                self.me.expect("lock", nonzero(libc::pthread_mutex_lock(lock)), Ok(0));
                let number = number as *mut u32;
                number.write_volatile(number.read_volatile() + 1);
                self.me.expect("unlock", nonzero(libc::pthread_mutex_unlock(lock)), Ok(0));
            }
        }
    }
}

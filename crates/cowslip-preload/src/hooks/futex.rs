//! Shared futexes (`futex(2)`): the kernel finds their waiters by where the page lies, which a freeze and a thaw
//! change.
//!
//! A futex with the private flag is found by its address. The flag is absent for futexes shared between processes,
//! robust mutexes, and the word that announces the end of a thread. That word lies on the thread's stack, with the
//! thread's own storage, which the kernel itself writes (`rseq(2)`, `set_robust_list(2)`). All of that leaves before it
//! is used.
//!
//! A word that the kernel itself writes in a call also leaves, private or not: for a mutex with priority inheritance
//! and for `FUTEX_WAKE_OP`. On memory that a freeze has just moved, the kernel does not wait for such a write. The call
//! fails with `EFAULT`, on which libc ends the process.
//!
//! # Safety
//! See [`crate::hooks`]. Attributes are read by the functions that libc has for them.

use core::ffi::{c_int, c_long, c_uint, c_void};
use core::ops::ControlFlow;

use cowslip::raw::Departure;
use cowslip_sys::user_memory;

use crate::arena::detach;
use crate::rt::next_symbol::interpose;

pub(crate) fn detach_memory(addr: usize, len: usize) {
    detach::before_use(addr, len, Departure::SharedFutex);
}

fn detach_value<T>(value: *const T) {
    detach_memory(value as usize, size_of::<T>());
}

/// Returns true if a getter of libc's reads a value other than 0 from the attribute.
fn asks<A>(attribute: *const A, get: unsafe extern "C" fn(*const A, *mut c_int) -> c_int) -> bool {
    let mut value = 0;
    // SAFETY: the program passes the attribute to a function that reads it as well; the value is written here.
    !attribute.is_null() && unsafe { get(attribute, &raw mut value) } == 0 && value != 0
}

fn is_used_by_kernel(attribute: *const libc::pthread_mutexattr_t) -> bool {
    // Robust mutexes are waited for like shared ones, whatever they say. The kernel writes those that inherit priority.
    asks(attribute, libc::pthread_mutexattr_getpshared)
        || asks(attribute, libc::pthread_mutexattr_getrobust)
        || asks(attribute, libc::pthread_mutexattr_getprotocol)
}

interpose! {
    [sem_init](semaphore: *mut libc::sem_t, shared: c_int, value: c_uint) -> c_int, if shared != 0 => detach_value(semaphore);
    [pthread_mutex_init __pthread_mutex_init](mutex: *mut libc::pthread_mutex_t, attribute: *const libc::pthread_mutexattr_t) -> c_int, if is_used_by_kernel(attribute) => detach_value(mutex);
    [pthread_cond_init](condition: *mut libc::pthread_cond_t, attribute: *const libc::pthread_condattr_t) -> c_int, if asks(attribute, libc::pthread_condattr_getpshared) => detach_value(condition);
    [pthread_rwlock_init](lock: *mut libc::pthread_rwlock_t, attribute: *const libc::pthread_rwlockattr_t) -> c_int, if asks(attribute, libc::pthread_rwlockattr_getpshared) => detach_value(lock);
    [pthread_barrier_init](barrier: *mut libc::pthread_barrier_t, attribute: *const libc::pthread_barrierattr_t, count: c_uint) -> c_int, if asks(attribute, libc::pthread_barrierattr_getpshared) => detach_value(barrier);
}

/// Called before a thread starts: the stack that the program chose for it, if any, leaves.
pub(crate) fn before_thread(attributes: *const libc::pthread_attr_t) {
    if attributes.is_null() {
        return;
    }
    let (mut stack, mut len) = (core::ptr::null_mut::<c_void>(), 0);
    // SAFETY: the program passes the attributes to pthread_create(3), which reads them as well.
    let asked = unsafe { libc::pthread_attr_getstack(attributes, &raw mut stack, &raw mut len) };
    // For attributes without a stack this is no range: it ends at zero.
    if asked == 0 && !stack.is_null() {
        detach_memory(stack as usize, len);
    }
}

/// Called before `clone(2)` makes a thread: the word that the kernel writes at its end leaves, and so does its storage.
pub(crate) fn before_clone(flags: u64, child_tid: usize, tls: usize) {
    const TIDS: u64 = (libc::CLONE_CHILD_CLEARTID | libc::CLONE_CHILD_SETTID) as u64;
    if flags & TIDS != 0 {
        detach_memory(child_tid, size_of::<c_int>());
    }
    if flags & libc::CLONE_SETTLS as u64 != 0 {
        detach_memory(tls, size_of::<usize>());
    }
}

const PRIVATE: c_int = libc::FUTEX_PRIVATE_FLAG;
const FUTEX_LOCK_PI2: c_int = 13;
pub(crate) const SYS_FUTEX_WAITV: c_long = 449;
pub(crate) const SYS_FUTEX_WAIT: c_long = 455;
pub(crate) const SYS_FUTEX_REQUEUE: c_long = 456;
const WORD_BYTES: usize = 4;

/// Calls by `syscall(2)` that wait, or give the kernel a place to write to when the thread ends.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_call(number: c_long, args: [c_long; 5]) {
    let [a, b, _, flags, e] = args;
    match number {
        libc::SYS_futex => before_futex(a as usize, b as c_int, e as usize),
        // Each is 24 bytes: value, address, flags.
        SYS_FUTEX_WAITV => each_waiter(a as usize, b as usize),
        SYS_FUTEX_REQUEUE => each_waiter(a as usize, 2),
        SYS_FUTEX_WAIT if flags as c_int & PRIVATE == 0 => {
            detach_memory(a as usize, size_of::<u64>())
        }
        libc::SYS_set_tid_address => detach_memory(a as usize, WORD_BYTES),
        libc::SYS_set_robust_list => detach_memory(a as usize, b as usize),
        libc::SYS_rseq => detach_memory(a as usize, b as usize),
        _ => {}
    }
}

#[cfg(target_arch = "x86_64")]
fn before_futex(word: usize, operation: c_int, other: usize) {
    let is_private = operation & PRIVATE != 0;
    match operation & libc::FUTEX_CMD_MASK {
        libc::FUTEX_WAKE_OP => detach_memory(other, WORD_BYTES),
        libc::FUTEX_LOCK_PI | FUTEX_LOCK_PI2 | libc::FUTEX_TRYLOCK_PI | libc::FUTEX_UNLOCK_PI => {
            detach_memory(word, WORD_BYTES);
        }
        libc::FUTEX_CMP_REQUEUE_PI | libc::FUTEX_WAIT_REQUEUE_PI => {
            if !is_private {
                detach_memory(word, WORD_BYTES);
            }
            detach_memory(other, WORD_BYTES);
        }
        _ if is_private => {}
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => detach_memory(word, WORD_BYTES),
        libc::FUTEX_REQUEUE | libc::FUTEX_CMP_REQUEUE => {
            detach_memory(word, WORD_BYTES);
            detach_memory(other, WORD_BYTES);
        }
        _ => {}
    }
}

#[cfg(target_arch = "x86_64")]
fn each_waiter(waiters: usize, count: usize) {
    user_memory::each(waiters, count, |[_, word, flags]: [u64; 3]| {
        if flags as c_int & PRIVATE == 0 {
            detach_memory(word as usize, size_of::<u64>());
        }
        ControlFlow::Continue(())
    });
}

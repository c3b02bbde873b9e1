//! jemalloc's locks around a fork: not taken where no other thread can hold one.
//!
//! Before a fork jemalloc takes all of its locks; afterwards it releases them, in the child as new ones, and the child
//! forgets its parent's other threads. Each time, both sides copy some twenty pages for this. A process needs none of
//! it if it has only one thread and jemalloc has never met another. The preload library's own thread is not counted: it
//! never allocates here.
//!
//! jemalloc passes its handlers to `pthread_atfork`, and its data of a thread to `pthread_setspecific` when it meets
//! the thread; the linker binds both calls to the functions below (`build.rs`).
//!
//! jemalloc may begin while another thread forks. libc therefore has these handlers, from the first allocation on. A
//! fork holds the [gate](lock_gate), and jemalloc begins behind it: each fork calls all of jemalloc's handlers, or
//! none.
//!
//! # Safety
//! Both do what the function does that they stand for. The handlers are called in the order and the number in which
//! fork(2) calls its own, all three of a fork or none.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;

use crate::preload;

type Handler = unsafe extern "C" fn();

/// jemalloc's handlers, for before a fork and for either side of it.
struct Handlers {
    prepare: Handler,
    in_parent: Handler,
    in_child: Handler,
}

static HANDLERS: OnceLock<Handlers> = OnceLock::new();

/// The fork in progress takes the locks, or the last one did. In one section with the other statics that a fork writes:
/// each side then copies one page for them.
#[unsafe(link_section = "cowslip_fork_data")]
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The first thread's value of jemalloc's key.
static FIRST: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// jemalloc has met another thread since.
static OTHERS: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn __real_pthread_atfork(
        prepare: Option<Handler>,
        in_parent: Option<Handler>,
        in_child: Option<Handler>,
    ) -> c_int;
    fn __real_pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
    /// The lock of libc's list of streams, which is recursive.
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_atfork(
    before: Handler,
    in_parent: Handler,
    in_child: Handler,
) -> c_int {
    let is_first = HANDLERS.set(Handlers { prepare: before, in_parent, in_child }).is_ok();
    if is_first { 0 } else { libc::ENOMEM }
}

/// Has each later fork call the handlers below.
pub(crate) fn register() -> bool {
    // SAFETY: three functions that live as long as this library, which is never unloaded.
    unsafe { __real_pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}

/// A recursive mutex: jemalloc's beginning allocates, and so do other handlers of a fork.
struct Gate(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex may be shared between threads.
unsafe impl Sync for Gate {}

#[unsafe(link_section = "cowslip_fork_data")]
static GATE: Gate = Gate(UnsafeCell::new(libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP));

/// A fork holds the gate.
#[unsafe(link_section = "cowslip_fork_data")]
static IS_FORKING: AtomicBool = AtomicBool::new(false);

/// Waits for forks in other threads, and keeps new ones out. In a thread that forks it does not wait.
pub(crate) fn lock_gate() {
    // SAFETY: an initialised mutex that lives for ever.
    unsafe { libc::pthread_mutex_lock(GATE.0.get()) };
}

/// # Safety
/// The calling thread has [locked](lock_gate) it.
pub(crate) unsafe fn unlock_gate() {
    // SAFETY: the caller promises it.
    unsafe { libc::pthread_mutex_unlock(GATE.0.get()) };
}

/// The thread of the preload library that is in jemalloc, behind the gate; else 0.
static VISITOR: AtomicUsize = AtomicUsize::new(0);

/// Has a thread of the preload library act on jemalloc, and forget it then, unless a fork is in progress.
pub(crate) fn unless_forking(act: impl FnOnce()) {
    // SAFETY: an initialised mutex that lives for ever; it is unlocked by the thread that has locked it.
    unsafe {
        if libc::pthread_mutex_trylock(GATE.0.get()) != 0 {
            return;
        }
        VISITOR.store(libc::pthread_self() as usize, Relaxed);
        act();
        VISITOR.store(0, Relaxed);
        unlock_gate();
    }
}

/// Returns true if the thread that holds the gate forks.
pub(crate) fn is_forking() -> bool {
    IS_FORKING.load(Relaxed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_setspecific(key: c_uint, value: *const c_void) -> c_int {
    let value = value.cast_mut();
    // SAFETY: pthread_self(3) takes nothing.
    if unsafe { libc::pthread_self() } as usize == VISITOR.load(Relaxed) {
        // SAFETY: jemalloc's own call.
        return unsafe { __real_pthread_setspecific(key, value) };
    }
    let first = FIRST.compare_exchange(ptr::null_mut(), value, Relaxed, Relaxed);
    if first.is_err_and(|first| first != value) {
        OTHERS.store(true, Relaxed);
    }
    // SAFETY: jemalloc's own call.
    unsafe { __real_pthread_setspecific(key, value) }
}

unsafe extern "C" fn prepare() {
    // libc takes it after the handlers. A thread that has it may wait for a stream whose user allocates, so it comes
    // before all locks of an allocator (glibc's bug 19431).
    // SAFETY: released by `parent` or `child`, in this thread.
    unsafe { _IO_list_lock() };
    lock_gate();
    IS_FORKING.store(true, Relaxed);
    let takes = HANDLERS.get().is_some() && (OTHERS.load(Relaxed) || !is_sole_thread());
    // Written only when it changes: a write copies the page.
    if TAKEN.load(Relaxed) != takes {
        TAKEN.store(takes, Relaxed);
    }
    call(|handlers| handlers.prepare);
}

unsafe extern "C" fn parent() {
    call(|handlers| handlers.in_parent);
    IS_FORKING.store(false, Relaxed);
    // SAFETY: `prepare` has locked it, in this thread.
    unsafe {
        unlock_gate();
        _IO_list_unlock();
    }
}

unsafe extern "C" fn child() {
    call(|handlers| handlers.in_child);
    IS_FORKING.store(false, Relaxed);
    // SAFETY: the child has one thread, with another thread id than the owner that the mutex records. libc has reset its
    // lock before, unless the parent had one thread only.
    unsafe {
        GATE.0.get().write(libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP);
        _IO_list_resetlock();
    }
}

/// Calls one of jemalloc's handlers, if this fork takes the locks. Between the handlers of a fork that does not, no
/// other thread exists that could begin one that does.
fn call(handler: impl FnOnce(&Handlers) -> Handler) {
    if let (true, Some(handlers)) = (TAKEN.load(Relaxed), HANDLERS.get()) {
        // SAFETY: jemalloc registered it to be called here.
        unsafe { handler(handlers)() };
    }
}

/// Returns true if this is the only thread of the process, beside the preload library's. False without that library,
/// which would know.
fn is_sole_thread() -> bool {
    type Ask = unsafe extern "C" fn() -> bool;
    let ask = preload::IS_SOLE_THREAD.get();
    // SAFETY: null, or the preload library's symbol, which has this type. It takes nothing, and waits for no lock that
    // a thread holds while it allocates.
    !ask.is_null() && unsafe { core::mem::transmute::<*mut c_void, Ask>(ask)() }
}

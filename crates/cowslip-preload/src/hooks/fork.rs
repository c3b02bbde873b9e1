//! `fork`: a freeze right before it, a thaw when no child reads the base.
//!
//! ```text
//!  fork() ── start the service thread
//!    └─ libc's fork ── the program's prepare handlers ── ours: freeze, lock ── fork
//!         parent: ours: unlock ── the program's ...      child: ours: become a reader, unlock ── ...
//! ```
//! Ours are registered with `pthread_atfork`, so that forks inside libc (`daemon`, `forkpty`) freeze too. The thread is
//! started before the handlers run: an allocator's prepare handler takes its locks, and starting a thread allocates.
//!
//! Inherited arenas are locked too, so that the child finds them whole; there is nothing to freeze in them.
//!
//! If a freeze is refused, live memory leaves the arena, and the kernel copies its page tables as it does natively.
//! That may be refused too, for lack of memory or because the memory is sealed. A handler cannot refuse the fork: the
//! child then ends before the program sees it, and `fork()` in the parent fails with the errno.
//!
//! # Safety
//! [`PENDING`] is accessed only by the thread that holds the lock of this library's allocator, between the prepare and
//! the parent or child handler of its fork: the thread for which [`crate::arena::registry::is_forking_here`] is true, and its
//! copy in the child.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use cowslip::raw::{Departure, PreparedFork};
use cowslip::{Arena, FreezeMethod};
use cowslip_sys::Errno;
use cowslip_sys::process::{self, BlockedSignals};

use crate::arena::{
    child_limits, detach,
    registry::{self, arenas, config, owned},
    setup, wipe_rendezvous,
};
use crate::branch::socket;
use crate::hooks::{
    credentials, futex,
    io_uring::{self, Found},
    proc_stat,
};
use crate::rt::{alloc, deferred_errno, log::say, next_symbol::Next};

struct Pending(UnsafeCell<Option<(PreparedFork<'static>, BlockedSignals)>>);

// SAFETY: see the module.
unsafe impl Sync for Pending {}

/// The child of the fork in progress shares the table of descriptors with its parent: closing ours there would close
/// the parent's. Written by the thread that holds the arenas' locks, and read in the child, once.
static SHARES_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

/// The child of the fork in progress has other rights. Accessed like [`SHARES_DESCRIPTORS`].
static HAS_OTHER_RIGHTS: AtomicBool = AtomicBool::new(false);

/// This process shares its table of descriptors with its parent.
static IS_SHARING: AtomicBool = AtomicBool::new(false);

pub(crate) fn shares_descriptors() -> bool {
    IS_SHARING.load(Ordering::Relaxed)
}

static PENDING: Pending = Pending(UnsafeCell::new(None));

/// Registers our handlers. Prepare handlers run in the reverse order of their registration, and ours, which takes the
/// arena's lock, must be the last: an allocator's waits for threads that may be waiting for that lock. This is
/// therefore called at the first mapping of all, and before any other registration.
pub(crate) fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if REGISTERED.load(Ordering::Relaxed) || REGISTERED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: three functions that live as long as this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
}

type Handler = Option<unsafe extern "C" fn()>;

static REGISTER_ATFORK: Next = Next::new(c"__register_atfork");

/// libc's function behind `pthread_atfork(3)`, which is a few lines of its own in each object.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    in_parent: Handler,
    in_child: Handler,
    object: *mut c_void,
) -> c_int {
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    if !config().off {
        register();
    }
    // SAFETY: libc's symbol of that name has this type, and the call is the program's own.
    unsafe {
        let real = core::mem::transmute::<*mut c_void, Register>(REGISTER_ATFORK.get());
        real(prepare, in_parent, in_child, object)
    }
}

/// Sets the flags of `clone(2)` for the fork that this thread has prepared.
pub(crate) fn set_flags(flags: u64) {
    SHARES_DESCRIPTORS.store(flags & libc::CLONE_FILES as u64 != 0, Ordering::Relaxed);
    HAS_OTHER_RIGHTS.store(credentials::are_changed_by_clone(flags), Ordering::Relaxed);
}

pub(crate) extern "C" fn prepare() {
    if config().off {
        return;
    }
    let blocked = BlockedSignals::enter();
    registry::note_fork();
    // A fork inside libc leaves its refusal here.
    let _ = deferred_errno::take();
    match prepare_fork() {
        Ok((prepared, count)) => {
            alloc::lock();
            registry::begin_fork(count);
            wipe_rendezvous::prepare(prepared.empties_in_child());
            // SAFETY: this thread holds the allocator's lock.
            unsafe { *PENDING.0.get() = Some((prepared, blocked)) };
        }
        Err(error) => {
            let errno = Errno::from_raw_os_error(error.errno().unwrap_or(libc::EAGAIN));
            say!("fork refused: {error}");
            if !deferred_errno::refuse(errno) {
                say!("and so many others that its child runs without the arena");
            }
        }
    }
}

/// Freezes the arenas and locks them; also returns their number.
fn prepare_fork() -> cowslip::Result<(PreparedFork<'static>, usize)> {
    let began_ns = process::now_ns();
    if HAS_NO_SERVICE.load(Ordering::Relaxed) && !config().is_plain && !detach::is_closed() {
        let _ = detach::everything(Departure::NoThaw);
    }
    // The memory that a ring made past this library reads into is not known.
    let may_freeze = arenas().next().is_some() && !detach::is_closed();
    let found = if may_freeze { io_uring::look() } else { None };
    match found {
        Some(Found::Ring) => _ = detach::everything(Departure::Ring),
        Some(Found::Pinned) => owned().for_each(|arena| arena.raw().pin()),
        None => {}
    }
    let arenas: Vec<&Arena> = arenas().collect();
    let prepared = PreparedFork::prepare(&arenas).or_else(|error| {
        say!("{error}; what is not frozen leaves the arena");
        owned().try_for_each(|arena| arena.raw().detach_live(Departure::Refused))?;
        PreparedFork::prepare(&arenas)
    })?;
    let us = (process::now_ns() - began_ns) / 1000;
    match prepared.method() {
        _ if arenas.is_empty() => {}
        Some(FreezeMethod::Userfaultfd) => say!("frozen in {us} us, forking"),
        Some(FreezeMethod::WithoutUserfaultfd) => {
            say!("frozen without userfaultfd in {us} us, forking")
        }
        None => say!("nothing to freeze, ready in {us} us, forking"),
    }
    Ok((prepared, arenas.len()))
}

fn take_pending() -> Option<(PreparedFork<'static>, BlockedSignals)> {
    // SAFETY: see the module; called by the thread that filled it, or by its copy in the child.
    unsafe { (*PENDING.0.get()).take() }
}

pub(crate) extern "C" fn in_parent() {
    if !registry::is_forking_here() {
        return;
    }
    wipe_rendezvous::wait();
    let pending = take_pending();
    registry::end_fork();
    alloc::unlock();
    if let Some((prepared, blocked)) = pending {
        prepared.in_parent();
        drop(blocked);
    }
}

pub(crate) extern "C" fn in_child() {
    if deferred_errno::take().is_some() {
        process::exit_now(127);
    }
    socket::begin_child(SHARES_DESCRIPTORS.load(Ordering::Relaxed));
    if !registry::is_forking_here() {
        setup::begin_child();
        return;
    }
    let pending = take_pending();
    setup::begin_child();
    alloc::unlock();
    if let Some((prepared, blocked)) = pending {
        let shares = SHARES_DESCRIPTORS.swap(false, Ordering::Relaxed);
        IS_SHARING.store(shares, Ordering::Relaxed);
        if shares {
            prepared.in_child_sharing_descriptors();
        } else {
            prepared.in_child();
        }
        wipe_rendezvous::come();
        child_limits::begin();
        if HAS_OTHER_RIGHTS.swap(false, Ordering::Relaxed) {
            credentials::renounce();
        }
        drop(blocked);
    }
}

static FORK: Next = Next::new(c"fork");
static PTHREAD_CREATE: Next = Next::new(c"pthread_create");

/// Looks the functions up now: in the child of a system call, the dynamic linker's lock may be held by a thread that
/// does not exist there.
pub(crate) fn look_up() {
    FORK.get();
    PTHREAD_CREATE.get();
}

/// Has the arenas watch for the end of a child.
pub(crate) fn watch(pid: c_int) {
    if detach::is_closed() {
        return;
    }
    owned().for_each(|arena| arena.raw().watch_child(pid));
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> c_int {
    if config().off {
        // SAFETY: the program's own call.
        return unsafe { libcs_fork() };
    }
    let blocked = BlockedSignals::enter();
    setup::adopt_all();
    start_services();
    drop(blocked);
    // SAFETY: the program's own call.
    unsafe { fork_as_it_is() }
}

/// # Safety
/// As for `fork(2)`.
unsafe fn libcs_fork() -> c_int {
    // SAFETY: libc's symbol of that name has this type.
    let real =
        unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(FORK.get()) };
    // SAFETY: the caller promises it.
    unsafe { real() }
}

/// Forks without taking arenas over or starting service threads.
///
/// # Safety
/// As for `fork(2)`.
pub(crate) unsafe fn fork_as_it_is() -> c_int {
    let mut blocked = BlockedSignals::enter();
    // SAFETY: the caller promises it.
    let pid = unsafe { libcs_fork() };
    if pid < 0 {
        blocked.set_errno(process::current_errno());
    }
    if pid <= 0 {
        return pid;
    }
    if let Some(errno) = deferred_errno::take() {
        let _ = process::wait_for(pid);
        blocked.set_errno(errno);
        return -1;
    }
    watch(pid);
    pid
}

/// A service thread failed to start at the last attempt.
static HAS_NO_SERVICE: AtomicBool = AtomicBool::new(false);

/// Starts the service threads that are not running.
pub(crate) fn start_services() {
    if detach::is_closed() {
        return;
    }
    start(|| {
        credentials::renew();
        let refused = owned().filter(|arena| !arena.raw().start_service()).count();
        HAS_NO_SERVICE.store(refused > 0, Ordering::Relaxed);
    });
}

/// Calls `start`, which starts service threads, unless this is the `pthread_create` of such a start.
pub(crate) fn start(start: impl FnOnce()) {
    static STARTING: AtomicBool = AtomicBool::new(false);
    if !STARTING.swap(true, Ordering::Relaxed) {
        start();
        STARTING.store(false, Ordering::Relaxed);
    }
}

/// Returns true if this is the program's only thread, as far as the kernel knows. Ours is not counted, and does not
/// allocate. The bundled malloc calls this before a fork.
#[unsafe(no_mangle)]
extern "C" fn cowslip_is_sole_thread() -> bool {
    proc_stat::is_sole()
}

/// Starts the service thread with a program's first thread, so that its first fork need not wait for it, and so that a
/// daemon which starts threads makes inherited memory live. The place is safe: a caller that starts a thread allocates.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void,
    ) -> c_int;
    // SAFETY: libc's symbol of that name has this type.
    let real = unsafe { core::mem::transmute::<*mut c_void, Create>(PTHREAD_CREATE.get()) };
    futex::before_thread(attributes);
    // SAFETY: the program's own call.
    let answer = unsafe { real(thread, attributes, start, argument) };
    if answer == 0 && arenas().next().is_some() {
        let _blocked = BlockedSignals::enter();
        setup::adopt_all();
        start_services();
    }
    answer
}

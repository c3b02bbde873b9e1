//! `pthread_atfork`: a freeze right before each fork, a thaw when no child reads the base.
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
//! the parent or child handler of its fork: the thread for which [`is_forking_here`] is true, and its copy in the
//! child.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use cowslip::raw::{Departure, PreparedFork};
use cowslip::{Arena, FreezeMethod};
use cowslip_sys::Errno;
use cowslip_sys::process::{self, BlockedSignals};

use crate::arena::kernel_access::{self, KernelAccess};
use crate::arena::registry::{arenas, owned};
use crate::arena::setup_state::is_closed;
use crate::arena::{child_limits, detach, ownership, service, wipe_rendezvous};
use crate::branch::socket;
use crate::hooks::credentials;
use crate::rt::config::config;
use crate::rt::fork_state::{self, is_forking_here};
use crate::rt::log::say;
use crate::rt::next_symbol::NextSymbol;
use crate::rt::{alloc, deferred_errno};

struct Pending(UnsafeCell<Option<(PreparedFork<'static>, BlockedSignals)>>);

// SAFETY: see the module.
unsafe impl Sync for Pending {}

/// The child of the fork in progress shares the table of descriptors with its parent: closing ours there would close
/// the parent's. Written by the thread that holds the arenas' locks, and read in the child, once.
#[unsafe(link_section = "cowslip_fork_data")]
static SHARES_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

/// The child of the fork in progress has other rights. Accessed like [`SHARES_DESCRIPTORS`].
#[unsafe(link_section = "cowslip_fork_data")]
static HAS_OTHER_CREDENTIALS: AtomicBool = AtomicBool::new(false);

#[unsafe(link_section = "cowslip_fork_data")]
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

static REGISTER_ATFORK: NextSymbol = NextSymbol::new(c"__register_atfork");

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
    HAS_OTHER_CREDENTIALS.store(credentials::are_changed_by_clone(flags), Ordering::Relaxed);
}

pub(crate) extern "C" fn prepare() {
    if config().off {
        return;
    }
    let blocked = BlockedSignals::enter();
    fork_state::note_fork();
    // A fork inside libc leaves its refusal here.
    let _ = deferred_errno::take();
    match prepare_fork() {
        Ok((prepared, count)) => {
            alloc::lock();
            fork_state::begin_fork(count);
            wipe_rendezvous::prepare(prepared.empties_in_child());
            // SAFETY: this thread holds the allocator's lock.
            unsafe { *PENDING.0.get() = Some((prepared, blocked)) };
        }
        Err(error) => {
            let errno = Errno::from_raw_os_error(error.errno().unwrap_or(libc::EAGAIN));
            say!("fork refused: {error}");
            if !deferred_errno::record(errno) {
                say!("and so many others that its child runs without the arena");
            }
        }
    }
}

/// Freezes the arenas and locks them; also returns their number.
fn prepare_fork() -> cowslip::Result<(PreparedFork<'static>, usize)> {
    let began_ns = process::now_ns();
    if service::is_lacking() && !config().is_plain && !is_closed() {
        let _ = detach::all(Departure::NoThaw);
    }
    // The memory that a ring made past this library reads into is not known.
    let may_freeze = arenas().next().is_some() && !is_closed();
    let access = if may_freeze { kernel_access::scan() } else { None };
    match access {
        Some(KernelAccess::Ring) => _ = detach::all(Departure::Ring),
        Some(KernelAccess::Pinned) => owned().for_each(|arena| arena.raw().pin()),
        None => {}
    }
    let arenas: Vec<&Arena> = arenas().collect();
    let prepared = PreparedFork::prepare_or_leave(&arenas, |error| {
        say!("{error}; what is not frozen leaves the arena");
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

/// False if the fork that this thread has prepared copies memory that other threads still write.
pub(crate) fn is_of_one_instant() -> bool {
    // SAFETY: see the module; called by the thread that filled it.
    let pending = unsafe { &*PENDING.0.get() };
    pending.as_ref().is_none_or(|(prepared, _)| !prepared.has_copies())
}

fn take_pending() -> Option<(PreparedFork<'static>, BlockedSignals)> {
    // SAFETY: see the module; called by the thread that filled it, or by its copy in the child.
    unsafe { (*PENDING.0.get()).take() }
}

pub(crate) extern "C" fn in_parent() {
    if !is_forking_here() {
        return;
    }
    wipe_rendezvous::wait();
    let pending = take_pending();
    fork_state::end_fork();
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
    let shares = SHARES_DESCRIPTORS.swap(false, Ordering::Relaxed);
    if !is_forking_here() {
        socket::begin_child(shares);
        ownership::begin_child();
        return;
    }
    let pending = take_pending();
    ownership::begin_child();
    alloc::unlock();
    if let Some((prepared, blocked)) = pending {
        fork_state::set_shares_descriptors(shares);
        if shares {
            prepared.in_child_sharing_descriptors();
        } else {
            prepared.in_child();
        }
        socket::begin_child(shares);
        wipe_rendezvous::arrive();
        child_limits::apply_niceness();
        if HAS_OTHER_CREDENTIALS.swap(false, Ordering::Relaxed) {
            credentials::renounce();
        }
        drop(blocked);
    }
}

#![allow(unsafe_code)]
//! Copies of this process with its arenas: by [`fork()`], by any other caller of `fork(3)` (an interpreter, a server, a
//! library), and by `cowslip branch`, for which the preload library of `cowslip run` has the function. A program without
//! that library goes on.
//!
//! The handlers of `fork(3)`:
//!
//! ```text
//!   prepare: list locked, signals blocked, arenas prepared ──fork──▶ in parent: in_parent, signals, unlocked
//!                                                              └───▶ in child:  in_child,  signals, unlocked
//! ```
//! `pthread_atfork(3)` cannot refuse a fork. Where the arenas cannot be frozen their memory is left to the kernel,
//! which copies it like any other; where that fails too, the child is without them.

use std::cell::Cell;
use std::env;
use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::io::{self, Write};
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::{Errno, dynamic};

use crate::arena::{Arena, Handle};
use crate::freeze::fork::{PreparedFork, watch_child};
use crate::raw::branch::SEED_BYTES;
use crate::thaw::serve;
use crate::timing::Deadline;

/// The arenas that every fork takes along.
struct Installed {
    arenas: Vec<Weak<Handle>>,
    is_registered: bool,
}

static INSTALLED: Mutex<Installed> =
    Mutex::new(Installed { arenas: Vec::new(), is_registered: false });

/// State of a fork under way, in the order in which it is dropped.
struct Pending {
    fork: Option<PreparedFork<'static>>,
    /// Borrowed by `fork`.
    arenas: Vec<Arena>,
    _installed: MutexGuard<'static, Installed>,
    _signals: BlockedSignals,
}

thread_local! {
    /// The fork under way, by this thread or, in the child, by its parent. It is taken by the handler after the fork.
    static PENDING: Cell<Option<ManuallyDrop<Pending>>> = const { Cell::new(None) };

    /// True while this thread is in [`fork()`], which prepares the arenas that it was given.
    static IS_OWN_FORK: Cell<bool> = const { Cell::new(false) };
}

/// Calls `fork` without the handlers' help, in parent and child.
fn without_handlers<T>(fork: impl FnOnce() -> T) -> T {
    let outer = IS_OWN_FORK.replace(true);
    let answer = fork();
    IS_OWN_FORK.set(outer);
    answer
}

impl Arena {
    /// Makes every later `fork(3)` of this process take the arena along, like [`fork`](fork()): for code that
    /// does not call that itself, such as an interpreter's `os.fork` or a server that forks its workers. It holds until
    /// the arena ends; children do the same when they fork.
    ///
    /// A freeze of it that fails cannot refuse the fork: the arena's memory is left to the kernel then
    /// (`Departure::Refused`), which copies it at the same cost in time and page tables as any other.
    ///
    /// # Errors
    /// The system's, if it cannot register another handler (`pthread_atfork(3)`).
    ///
    /// ```
    /// use cowslip::{Arena, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// arena.install_at_fork()?;
    /// // From now on: os.fork(), gunicorn, celery, …
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn install_at_fork(&self) -> Result<()> {
        let mut installed = lock();
        if !installed.is_registered {
            process::at_fork(prepare, in_parent, in_child)
                .during("have every fork take the arena along")?;
            installed.is_registered = true;
        }
        installed.arenas.retain(|arena| arena.strong_count() > 0);
        let this = Arc::downgrade(&self.handle);
        if !installed.arenas.iter().any(|arena| arena.ptr_eq(&this)) {
            installed.arenas.push(this);
        }
        Ok(())
    }
}

fn lock() -> MutexGuard<'static, Installed> {
    INSTALLED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

extern "C" fn prepare() {
    if IS_OWN_FORK.get() {
        return;
    }
    let installed = lock();
    let living = installed.arenas.iter().filter_map(Weak::upgrade);
    let arenas: Vec<Arena> = living.map(|handle| Arena { handle }).collect();
    for arena in &arenas {
        serve::ensure(arena.shared());
    }
    let signals = BlockedSignals::enter();
    let all: Vec<&Arena> = arenas.iter().collect();
    let fork = PreparedFork::prepare_or_leave(&all, |_| ()).ok();
    // SAFETY: it borrows from the handles that `arenas` shares, which are dropped after it.
    let fork =
        unsafe { mem::transmute::<Option<PreparedFork<'_>>, Option<PreparedFork<'static>>>(fork) };
    let pending = Pending { fork, arenas, _installed: installed, _signals: signals };
    PENDING.set(Some(ManuallyDrop::new(pending)));
}

fn take_pending() -> Option<Pending> {
    if IS_OWN_FORK.get() {
        return None;
    }
    PENDING.take().map(ManuallyDrop::into_inner)
}

extern "C" fn in_parent() {
    end(PreparedFork::in_parent);
}

extern "C" fn in_child() {
    end(PreparedFork::in_child);
}

fn end(tell: fn(PreparedFork<'static>)) {
    let Some(mut pending) = take_pending() else { return };
    pending.fork.take().into_iter().for_each(tell);
    // An arena that was given up meanwhile ends here.
    pending.arenas.clear();
}

/// The side of a [`fork`] that this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fork {
    /// The parent, with the child's process id.
    Parent(i32),
    /// The child.
    Child,
}

/// `fork(2)` of a process with arenas: the child has their content at this instant, and huge pages are neither copied
/// nor split. Arenas that are not named are missing in the child. [`Arena::install_at_fork`] does the same for forks
/// that other code calls.
///
/// # Errors
/// Those of `PreparedFork::prepare`, or the kernel's for the fork itself.
///
/// # Safety
/// The same as for fork(2): in the child of a program with threads only async-signal-safe functions may be called until
/// it execs or ends.
pub unsafe fn fork(arenas: &[&Arena]) -> Result<Fork> {
    for arena in arenas {
        serve::ensure(arena.shared());
    }
    let prepared = PreparedFork::prepare(arenas)?;
    // SAFETY: the caller keeps to what a child may do; `in_child` takes no lock and starts nothing.
    match without_handlers(|| unsafe { process::fork() }) {
        Ok(0) => {
            prepared.in_child();
            Ok(Fork::Child)
        }
        Ok(pid) => {
            prepared.in_parent();
            for arena in arenas {
                watch_child(arena.shared(), pid);
            }
            Ok(Fork::Parent(pid))
        }
        Err(errno) => {
            prepared.in_parent();
            Err(errno).during("fork")
        }
    }
}

/// Forks a child that watches `word` for `time`, and then ends: with 1 if it saw another value than `expected`.
pub(crate) fn fork_watching(
    arena: &Arena,
    word: &AtomicU64,
    expected: u64,
    time: Duration,
) -> Result<i32> {
    // SAFETY: the child reads a word and the clock, and ends.
    match unsafe { fork(&[arena]) }? {
        Fork::Parent(pid) => Ok(pid),
        Fork::Child => {
            let until = Deadline::after_ns(time.as_nanos() as u64);
            let mut is_same = true;
            while !until.has_passed() {
                is_same &= word.load(SeqCst) == expected;
            }
            process::exit_now(i32::from(!is_same))
        }
    }
}

const BRANCH: &str = "be ready to be branched";

/// Which copy of a program this process is: see [`branch_point`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BranchCopy {
    /// Its number, from 0 (`COWSLIP_BRANCH`).
    pub index: u32,
    /// The number of copies made at once (`COWSLIP_BRANCHES`).
    pub count: u32,
    /// Its argument on the command line, if it has one (`COWSLIP_BRANCH_ARG`).
    pub argument: Option<OsString>,
    /// Random bytes of this copy alone (`COWSLIP_BRANCH_SEED`, as hexadecimal digits): generators
    /// that were seeded before the branch point go on equally in all copies.
    pub seed: [u8; SEED_BYTES],
}

type BranchHook = Box<dyn FnMut(&BranchCopy) + Send>;

static BRANCH_HOOKS: Mutex<Vec<BranchHook>> = Mutex::new(Vec::new());

/// Runs `hook` in each copy that `cowslip branch` makes at a later [`branch_point`] of this
/// process, before that returns: to seed generators, and to give clones of templates a new identity
/// ([`TemplateClone::after_fork`](crate::TemplateClone::after_fork), which runs their hooks).
///
/// ```
/// cowslip::on_branch(|copy| {
///     let seed: [u8; 8] = copy.seed[..8].try_into().unwrap();
///     println!("a generator begins with {}", u64::from_ne_bytes(seed));
/// });
/// ```
pub fn on_branch(hook: impl FnMut(&BranchCopy) + Send + 'static) {
    branch_hooks().push(Box::new(hook));
}

fn branch_hooks() -> MutexGuard<'static, Vec<BranchHook>> {
    BRANCH_HOOKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Lets `cowslip branch` copy this process, which runs under `cowslip run`, until `timeout` has passed (`None`: until
/// it is told to go on; zero: only if a `cowslip branch` already waits). In a copy, returns its number and argument. In
/// the program itself, returns `None` once the time is up, `cowslip branch --release` says so, or a signal handler ran.
///
/// The program is found by its process id or by `name`, letters, digits, `.`, `_` and `-`, which need not be unique.
///
/// # Errors
/// [`ErrorKind::Unsupported`] without `cowslip run`; [`ErrorKind::Busy`] while another thread is in this call; the kernel's if
/// there can be no socket.
///
/// # Safety
/// A copy is like the child of `fork(2)`: only the calling thread lives on in it, and other threads' locks stay locked.
pub unsafe fn branch_point(
    name: Option<&str>,
    timeout: Option<Duration>,
) -> Result<Option<BranchCopy>> {
    type BranchPoint = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    let Some(found) = dynamic::other_than(ptr::null(), c"cowslip_branch_point") else {
        return Err(not_preloaded());
    };
    let name = name.map(CString::new).transpose();
    let name = name.map_err(|_| Error::new(ErrorKind::Usage, "a name with a NUL in it"))?;
    let milliseconds = timeout.map_or(-1, |time| time.as_millis().try_into().unwrap_or(c_int::MAX));
    // Buffered output is the program's, not the copies'.
    let _ = io::stdout().flush();
    // In a copy no thread may be there that could release their lock.
    let mut hooks = mem::take(&mut *branch_hooks());
    // SAFETY: the function of that name has the type that `docs/templates.md` says, the name is NULL or ends with a NUL, and the caller promised
    // what a copy needs.
    let answer = unsafe {
        mem::transmute::<*const c_void, BranchPoint>(found)(
            name.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            milliseconds,
        )
    };
    if let Ok(index) = u32::try_from(answer) {
        let count = env::var("COWSLIP_BRANCHES").ok().and_then(|count| count.parse().ok());
        let argument = env::var_os("COWSLIP_BRANCH_ARG");
        let given = env::var("COWSLIP_BRANCH_SEED").ok().and_then(|text| parse_seed(&text));
        let mut seed = given.unwrap_or([0; SEED_BYTES]);
        if given.is_none() {
            // The library of `cowslip run` is older.
            process::fill_random(&mut seed).during("get random bytes for a copy")?;
        }
        let copy = BranchCopy { index, count: count.unwrap_or(1), argument, seed };
        hooks.iter_mut().for_each(|hook| hook(&copy));
        keep_hooks(hooks, BRANCH_HOOKS.try_lock().ok());
        return Ok(Some(copy));
    }
    keep_hooks(hooks, Some(branch_hooks()));
    match cowslip_sys::errno::current() {
        Errno::AGAIN | Errno::CANCELED | Errno::INTR => Ok(None),
        Errno::NOSYS => Err(not_preloaded()),
        Errno::BUSY => Err(Error::new(ErrorKind::Busy, "another thread is at its branch point")),
        errno => Err(errno).during(BRANCH),
    }
}

fn parse_seed(text: &str) -> Option<[u8; SEED_BYTES]> {
    let digits = text.as_bytes().chunks_exact(2).map(|pair| str::from_utf8(pair).ok());
    let bytes = digits.map(|pair| u8::from_str_radix(pair?, 16).ok());
    bytes.collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// Puts hooks back before those that came meanwhile.
fn keep_hooks(mut hooks: Vec<BranchHook>, place: Option<MutexGuard<'_, Vec<BranchHook>>>) {
    if let Some(mut place) = place {
        hooks.append(&mut place);
        *place = hooks;
    }
}

fn not_preloaded() -> Error {
    Error::new(ErrorKind::Unsupported, BRANCH)
        .because("the library that makes the copies is not in this program")
        .advise("start it with `cowslip run`")
}

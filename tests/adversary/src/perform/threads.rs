//! Threads, what they count together, how they wait for each other, and signals.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{FAILED, Me, SKIP};
use crate::model::Page;
use crate::program::Call;
use crate::shared::{COUNTERS, THREADS, shared};
use crate::sys::{self, nonzero};
use crate::words::PAGE;

const STACK: usize = 1 << 20;

pub(crate) struct Started {
    pub(crate) number: usize,
    handle: libc::pthread_t,
    stack: &'static str,
    at: usize,
}

/// Threads of this process.
static ALIVE: AtomicUsize = AtomicUsize::new(1);

/// Where the counters are, each on a page of its own, in the program's memory.
static AT: AtomicUsize = AtomicUsize::new(0);
/// What they must hold when all threads have ended.
static SUMS: [AtomicU64; COUNTERS] = [const { AtomicU64::new(0) }; COUNTERS];

fn counter(index: usize) -> &'static AtomicU64 {
    let at = AT.load(Ordering::Relaxed) + index % COUNTERS * PAGE;
    // SAFETY: mapped by `make_counters` for good, and only used as this.
    unsafe { &*(at as *const AtomicU64) }
}

pub(super) fn make_counters(me: &Me) {
    let at = sys::mmap(0, 64 * PAGE, libc::PROT_READ | libc::PROT_WRITE, 0);
    let at = at.unwrap_or_else(|errno| me.fail(&format!("mmap: errno {errno}")));
    AT.store(at, Ordering::Relaxed);
}

/// Before a fork: no child may have less.
pub(super) fn counters() -> [u64; COUNTERS] {
    core::array::from_fn(|index| counter(index).load(Ordering::SeqCst))
}

/// In a child: what it finds must be between what was known before the fork and what was intended.
pub(super) fn inherit_counters(me: &Me, parent: usize, least: &[u64; COUNTERS]) {
    for (index, sum) in SUMS.iter().enumerate() {
        let found = counter(index).load(Ordering::SeqCst);
        let most = shared().intended[parent][index].load(Ordering::SeqCst);
        if found < least[index] || found > most {
            let least = least[index];
            me.fail(&format!("counter {index} is {found} at the fork, not {least} to {most}"));
        }
        sum.store(found, Ordering::SeqCst);
        shared().intended[me.process][index].store(found, Ordering::SeqCst);
    }
}

pub(super) fn check_counters(me: &Me) {
    for (index, sum) in SUMS.iter().enumerate() {
        let (found, right) = (counter(index).load(Ordering::SeqCst), sum.load(Ordering::SeqCst));
        if found != right {
            me.fail(&format!("counter {index} is {found} instead of {right}"));
        }
    }
}

/// A signal that ends the process says so.
pub(super) fn catch_crashes() {
    extern "C" fn crashed(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel's.
        let at = unsafe { (*info).si_addr() };
        let tid = sys::thread_id();
        let places = shared().places();
        let place =
            places.iter().find(|place| place.3 == tid).map(|place| (place.0, place.1, place.2));
        shared().fail(&format!("signal {signal} at {at:?} in (process, thread, call) {place:?}"));
        sys::leave(FAILED)
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
        // SAFETY: all zeroes is an action; the handler has the signature of `SA_SIGINFO`.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = crashed as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigaction(signal, &action, null_mut());
        }
    }
}

/// A timer of a thread, and the stack its signals are handled on.
pub(crate) struct Signals {
    timer: c_int,
    stack: usize,
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

/// In a child there is one thread, and no timer.
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
        ALIVE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: attributes begin as all zeroes do; the stack is the thread's alone until it is joined.
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
            let argument = Box::into_raw(child).cast();
            let made = libc::pthread_create(&mut handle, &attributes, thread_main, argument);
            libc::pthread_attr_destroy(&mut attributes);
            (made, handle)
        };
        self.expect("pthread_create", nonzero(made), Ok(0));
        self.threads.push(Started { number, handle, stack, at });
        Some(())
    }

    /// What it held is this thread's then.
    pub(super) fn join(&mut self, number: usize) -> Option<()> {
        let index = self.threads.iter().position(|thread| thread.number == number)?;
        let thread = self.threads.remove(index);
        let mut returned = null_mut();
        // SAFETY: a thread that was not joined; it returns its `Me`, which it no longer uses.
        let theirs = unsafe {
            let joined = libc::pthread_join(thread.handle, &mut returned);
            self.expect("pthread_join", nonzero(joined), Ok(0));
            Box::from_raw(returned.cast::<Self>())
        };
        match thread.stack {
            "mapped" => self.expect("munmap", sys::munmap(thread.at, STACK), Ok(0)),
            // SAFETY: from `posix_memalign`, and nobody's any more.
            "allocated" => unsafe { libc::free(thread.at as *mut c_void) },
            _ => {}
        }
        self.regions.extend(theirs.regions);
        Some(())
    }

    pub(super) fn count(&mut self, call: &Call) -> Option<()> {
        let (index, times) = (call.number(0) % COUNTERS, call.number(1));
        shared().intended[self.process][index].fetch_add(times as u64, Ordering::SeqCst);
        for _ in 0..times {
            counter(index).fetch_add(1, Ordering::SeqCst);
        }
        SUMS[index].fetch_add(times as u64, Ordering::SeqCst);
        Some(())
    }

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
        // SAFETY: the page is this thread's and writable: room for a semaphore, or for a lock, a condition and
        // a word. The waker uses it until it is joined.
        unsafe {
            (at as *mut u8).write_bytes(0, PAGE);
            if how == "sem" {
                libc::sem_init(at as *mut libc::sem_t, 1, 0);
            }
            let mut handle = 0;
            let argument = (&raw const waker).cast_mut().cast();
            ALIVE.fetch_add(1, Ordering::Relaxed);
            let made = libc::pthread_create(&mut handle, core::ptr::null(), wake_main, argument);
            self.expect("pthread_create", nonzero(made), Ok(0));
            await_word(at, how);
            self.expect("pthread_join", nonzero(libc::pthread_join(handle, null_mut())), Ok(0));
        }
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        let seed = self.new_seed(page);
        crate::words::write(at, seed);
        self.regions[index].pages[page].content = crate::words::Content::Seed(seed);
        Some(())
    }

    /// Has this thread interrupted every so many milliseconds; 0 ends it.
    pub(super) fn signals(&mut self, call: &Call) -> Option<()> {
        extern "C" fn handled(_: c_int) {
            // Some of the stack is used.
            let used = [HANDLED.load(Ordering::Relaxed); 256];
            HANDLED.store(core::hint::black_box(used)[7].wrapping_add(1), Ordering::Relaxed);
        }
        self.stop_signals();
        let every = call.number(0) as i64;
        if every == 0 {
            return Some(());
        }
        let stack = sys::mmap(0, STACK, libc::PROT_READ | libc::PROT_WRITE, 0);
        let stack = stack.unwrap_or_else(|errno| self.fail(&format!("mmap: errno {errno}")));
        let mut timer: c_int = 0;
        // SAFETY: all zeroes are values of these; the stack is there until `stop_signals`.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = handled as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR1, &action, null_mut());
            let place = libc::stack_t { ss_sp: stack as *mut c_void, ss_flags: 0, ss_size: STACK };
            libc::sigaltstack(&place, null_mut());
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGUSR1;
            event.sigev_notify_thread_id = sys::thread_id() as c_int;
            let clock = libc::CLOCK_MONOTONIC;
            if libc::syscall(libc::SYS_timer_create, clock, &event, &mut timer) != 0 {
                self.fail(&format!("timer_create: errno {}", sys::errno()));
            }
            let every = libc::timespec { tv_sec: 0, tv_nsec: every * 1_000_000 };
            let spec = libc::itimerspec { it_interval: every, it_value: every };
            let none = null_mut::<libc::itimerspec>();
            libc::syscall(libc::SYS_timer_settime, timer, 0, &spec, none);
        }
        self.signals = Some(Signals { timer, stack });
        Some(())
    }

    pub(super) fn stop_signals(&mut self) {
        let Some(Signals { timer, stack }) = self.signals.take() else { return };
        // SAFETY: its own timer; the stack is not in use, as this is not a handler.
        unsafe {
            libc::syscall(libc::SYS_timer_delete, timer);
            let mut none: libc::stack_t = zeroed();
            none.ss_flags = libc::SS_DISABLE;
            libc::sigaltstack(&none, null_mut());
        }
        self.expect("munmap", sys::munmap(stack, STACK), Ok(0));
    }

    /// Closes what it does not know, or limits itself: only alone, as others may have some open.
    pub(super) fn descriptors(&mut self, call: &Call) -> Option<()> {
        if ALIVE.load(Ordering::Relaxed) != 1 || !self.threads.is_empty() {
            return SKIP;
        }
        let limit = |files: u64| {
            let limit = libc::rlimit { rlim_cur: files, rlim_max: 1024 };
            // SAFETY: a limit.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        };
        match call.word(0) {
            // SAFETY: nothing of this process holds a descriptor between calls.
            "close_range" => unsafe { _ = libc::close_range(3, u32::MAX, 0) },
            // SAFETY: as above.
            "closefrom" => unsafe { closefrom(3) },
            "close" => (3..1024).for_each(|fd| _ = sys::close(fd)),
            "few" => limit(16),
            _ => {
                limit(0);
                self.may_open = false;
            }
        }
        Some(())
    }
}

unsafe extern "C" {
    fn closefrom(first: c_int);
}

extern "C" fn thread_main(me: *mut c_void) -> *mut c_void {
    // SAFETY: `start` gave it up.
    let mut it = unsafe { Box::from_raw(me.cast::<Me>()) };
    it.run();
    it.end_thread();
    ALIVE.fetch_sub(1, Ordering::Relaxed);
    Box::into_raw(it).cast()
}

/// Who wakes a thread that waits in [`Me::futex`].
struct Waker<'a> {
    me: &'a Me,
    at: usize,
    how: &'static str,
    ms: usize,
    forks: bool,
}

fn word(at: usize) -> &'static AtomicU32 {
    // SAFETY: the page that `futex` set aside, beyond lock and condition.
    unsafe { &*((at + PAGE / 2) as *const AtomicU32) }
}

fn futex_op(how: &str, op: c_int) -> c_int {
    if how == "private" { op | libc::FUTEX_PRIVATE_FLAG } else { op }
}

/// # Safety
/// `at` is a page that `futex` set aside.
unsafe fn await_word(at: usize, how: &str) {
    let (lock, condition) = (at as *mut libc::pthread_mutex_t, (at + PAGE / 4) as *mut _);
    // SAFETY: zeroes are a lock and a condition as `PTHREAD_*_INITIALIZER` makes them.
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

extern "C" fn wake_main(waker: *mut c_void) -> *mut c_void {
    // SAFETY: `futex` waits for this thread before the waker goes.
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
    // SAFETY: as in `await_word`.
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

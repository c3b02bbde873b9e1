#![allow(unsafe_code)]
//! Stops the threads of another process, and reads and changes their registers (`ptrace(2)`).
//!
//! All calls for a thread come from the thread that seized it. When that one ends, however it ends, the kernel lets
//! go of all that it seized.
//!
//! # Safety
//! Each request gets a buffer of the length that it reads or writes. The memory of this process that a request names is
//! borrowed for the call.

use core::cell::{Cell, RefCell};
use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::time::Duration;
use std::time::Instant;

use crate::{Errno, Result, errno, passthrough};

/// The general registers of a thread on x86-64.
pub type Registers = libc::user_regs_struct;

/// The most bytes that [`Tracee::extended_state`] returns.
const MOST_EXTENDED_BYTES: usize = 1 << 16;

const CLONES: i32 = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACESYSGOOD;

const GET_RSEQ_CONFIGURATION: u32 = 0x420f;
const NT_X86_XSTATE: usize = 0x202;

/// The place of a component in the standard format of `XSAVE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XsaveLayout {
    /// From the beginning of the area.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
}

impl XsaveLayout {
    /// The place of a component, by its number in `XCR0`; `None` if this processor does not have it.
    #[cfg(target_arch = "x86_64")]
    pub fn of_component(component: u32) -> Option<Self> {
        const LEAF: u32 = 0xd;
        let has_leaf = core::arch::x86_64::__cpuid(0).eax >= LEAF;
        let answer = has_leaf.then(|| core::arch::x86_64::__cpuid_count(LEAF, component))?;
        let (offset, bytes) = (answer.ebx as usize, answer.eax as usize);
        (bytes > 0).then_some(Self { offset, bytes })
    }
}

/// Why a thread stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It was asked to ([`Tracee::interrupt`]).
    Asked,
    /// Its whole process has been stopped by a signal, and stays so when it goes on.
    WithAll,
    /// It is about to receive a signal, which it gets when it goes on.
    Signal(i32),
    /// It enters or leaves a system call, under [`Tracee::go_on_to_call`].
    Call,
    /// It has started a task, which is stopped as well: [`Tracee::event_message`] is its number.
    Cloned,
    /// It has ended.
    Ended,
}

/// A signal that waits: `siginfo_t` (`sigaction(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignalInfo(pub [u64; 16]);

impl SignalInfo {
    /// Its number.
    pub fn number(&self) -> i32 {
        self.0[0] as i32
    }
}

/// A thread that this thread has seized, and that no other thread may command. When this is dropped it goes on.
#[derive(Debug)]
pub struct Tracee {
    thread: i32,
    is_stopped: bool,
    has_ended: bool,
    /// The signal that it gets when it goes on; 0: none.
    signal: i32,
    is_stopped_with_all: bool,
    /// It ends with this process, whatever it is traced for.
    ends_with_us: Cell<bool>,
    stays_in_its_thread: PhantomData<*mut ()>,
}

impl Tracee {
    /// Seizes a thread, which runs on. Errors: `EPERM` without the right, or if another process traces it; `ESRCH`.
    pub fn seize(thread: i32) -> Result<Self> {
        request(libc::PTRACE_SEIZE, thread, 0, 0).map(|_| Self::cloned(thread))
    }

    /// The task of [`Stop::Cloned`], which is seized and about to stop.
    pub fn cloned(task: i32) -> Self {
        Self {
            thread: task,
            is_stopped: false,
            has_ended: false,
            signal: 0,
            is_stopped_with_all: false,
            ends_with_us: Cell::new(false),
            stays_in_its_thread: PhantomData,
        }
    }

    /// The thread's number.
    pub fn thread(&self) -> i32 {
        self.thread
    }

    /// True until it goes on.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// True if its last stop was one of all threads, by a signal.
    pub fn is_stopped_with_all(&self) -> bool {
        self.is_stopped_with_all
    }

    /// True if it is known to have ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Asks it to stop.
    pub fn interrupt(&self) -> Result<()> {
        request(libc::PTRACE_INTERRUPT, self.thread, 0, 0).map(drop)
    }

    /// Waits until it stops. `ETIMEDOUT` after two seconds in a call that nothing interrupts, or if it is the main thread of a
    /// process that has been killed, which ends after the others. A thread that waits for a processor has thirty seconds; one that
    /// uses a processor inside the kernel has not, for the others may be stopped.
    pub fn wait(&mut self) -> Result<Stop> {
        const SPINS: u32 = 200;
        const NAP: Duration = Duration::from_micros(50);
        const PATIENCE: Duration = Duration::from_secs(2);
        const PATIENCE_FOR_PROCESSOR: Duration = Duration::from_secs(30);
        let began = Instant::now();
        let (mut deadline, mut used_ns) = (began + PATIENCE, None);
        for spins in 0.. {
            if let Some(stop) = self.poll()? {
                return Ok(stop);
            }
            // It takes microseconds, unless it waits for a processor.
            match spins < SPINS {
                true => std::thread::yield_now(),
                false if Instant::now() < deadline => std::thread::sleep(NAP),
                false if self.state() == Some('R') && began.elapsed() < PATIENCE_FOR_PROCESSOR => {
                    deadline += PATIENCE;
                    let Some(now_ns) = self.used_ns() else { break };
                    let before_ns = used_ns.replace(now_ns).unwrap_or(now_ns);
                    if now_ns - before_ns > PATIENCE.as_nanos() as u64 / 2 {
                        break;
                    }
                }
                false => break,
            }
        }
        Err(Errno::TIMEDOUT)
    }

    /// Waits until it stops, for as long as that takes: a call on its behalf may be a fork of much memory. Of a process that has
    /// been killed, a thread can end only once the others are waited for: `ESRCH` then.
    pub fn wait_long(&mut self) -> Result<Stop> {
        loop {
            match self.wait() {
                Err(Errno::TIMEDOUT) if self.lives() => {}
                Err(Errno::TIMEDOUT) => return Err(Errno::SRCH),
                stop => return stop,
            }
        }
    }

    /// False once it is a zombie, or gone.
    fn lives(&self) -> bool {
        !matches!(self.state(), None | Some('Z' | 'X'))
    }

    /// Its state by `proc_pid_stat(5)`: `R` if it runs or waits for a processor.
    fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.thread)).ok()?;
        stat[stat.rfind(')')? + 1..].trim_start().chars().next()
    }

    /// Its processor time, by `/proc/PID/schedstat`; `None` on a kernel without such.
    fn used_ns(&self) -> Option<u64> {
        let times = std::fs::read_to_string(format!("/proc/{}/schedstat", self.thread)).ok()?;
        times.split_ascii_whitespace().next()?.parse().ok()
    }

    /// The stop that it is in; `None` if it runs.
    pub fn poll(&mut self) -> Result<Option<Stop>> {
        let mut status = 0;
        let options = libc::__WALL | libc::WNOHANG;
        // SAFETY: waitpid(2) writes the status through the pointer.
        match unsafe { libc::waitpid(self.thread, &raw mut status, options) } {
            -1 => return Err(errno::last()),
            0 => return Ok(None),
            _ => {}
        }
        let stop = meaning(status);
        self.has_ended |= stop == Stop::Ended;
        self.is_stopped = !self.has_ended;
        self.is_stopped_with_all = stop == Stop::WithAll;
        if let Stop::Signal(signal) = stop {
            self.signal = signal;
        }
        Ok(Some(stop))
    }

    /// Lets it go on, with the signal that it was about to receive.
    pub fn go_on(&mut self) -> Result<()> {
        let how = if self.is_stopped_with_all { libc::PTRACE_LISTEN } else { libc::PTRACE_CONT };
        self.resume(how)
    }

    /// Lets it go on alone where a signal has stopped the program: the others stay, and it does once it is let go of.
    pub fn go_on_alone(&mut self) -> Result<()> {
        self.resume(libc::PTRACE_CONT)
    }

    /// Keeps the signal from it that it was about to receive.
    pub fn forget_signal(&mut self) {
        self.signal = 0;
    }

    /// Lets it go on until it enters or leaves a system call. The kernel takes that back if this process ends.
    pub fn go_on_to_call(&mut self) -> Result<()> {
        self.resume(libc::PTRACE_SYSCALL)
    }

    fn resume(&mut self, how: u32) -> Result<()> {
        request(how, self.thread, 0, self.signal as usize)?;
        (self.is_stopped, self.signal) = (false, 0);
        Ok(())
    }

    /// Makes each task that it starts stop at once, or no longer.
    pub fn trace_clones(&self, traced: bool) -> Result<()> {
        self.set_options(if traced { CLONES } else { 0 })
    }

    /// Makes each task that it starts stop at once. It, and they, end with this process, until they are let go.
    pub fn take_over(&self) -> Result<()> {
        self.ends_with_us.set(true);
        self.set_options(CLONES)
    }

    /// Makes it end with this process, or no longer.
    pub fn end_with_this_process(&self, ends: bool) -> Result<()> {
        self.ends_with_us.set(ends);
        self.set_options(0)
    }

    fn set_options(&self, options: i32) -> Result<()> {
        let ends = if self.ends_with_us.get() { libc::PTRACE_O_EXITKILL } else { 0 };
        let options = options | ends;
        request(libc::PTRACE_SETOPTIONS, self.thread, 0, options as usize).map(drop)
    }

    /// The task that it has started.
    pub fn event_message(&self) -> Result<u64> {
        let mut message = 0_u64;
        request(libc::PTRACE_GETEVENTMSG, self.thread, 0, (&raw mut message).expose_provenance())?;
        Ok(message)
    }

    /// Its general registers.
    pub fn registers(&self) -> Result<Registers> {
        let mut registers = MaybeUninit::<Registers>::zeroed();
        request(libc::PTRACE_GETREGS, self.thread, 0, registers.as_mut_ptr().expose_provenance())?;
        // SAFETY: the kernel has written it; it consists of numbers.
        Ok(unsafe { registers.assume_init() })
    }

    /// Sets its general registers.
    pub fn set_registers(&self, registers: &Registers) -> Result<()> {
        let place = core::ptr::from_ref(registers).expose_provenance();
        request(libc::PTRACE_SETREGS, self.thread, 0, place).map(drop)
    }

    /// Its floating point and vector registers, in the standard format of `XSAVE`.
    pub fn extended_state(&self) -> Result<Vec<u8>> {
        let mut state = vec![0_u8; MOST_EXTENDED_BYTES];
        let mut place = libc::iovec { iov_base: state.as_mut_ptr().cast(), iov_len: state.len() };
        let place_of = (&raw mut place).expose_provenance();
        request(libc::PTRACE_GETREGSET, self.thread, NT_X86_XSTATE, place_of)?;
        state.truncate(place.iov_len);
        Ok(state)
    }

    /// Sets its floating point and vector registers, to those of a thread on a processor of this kind.
    pub fn set_extended_state(&self, state: &[u8]) -> Result<()> {
        // The kernel only reads it.
        let start = state.as_ptr().cast_mut().cast();
        let mut place = libc::iovec { iov_base: start, iov_len: state.len() };
        let place_of = (&raw mut place).expose_provenance();
        request(libc::PTRACE_SETREGSET, self.thread, NT_X86_XSTATE, place_of).map(drop)
    }

    /// The signals that it blocks; the lowest bit is signal 1.
    pub fn blocked_signals(&self) -> Result<u64> {
        let mut mask = 0_u64;
        request(libc::PTRACE_GETSIGMASK, self.thread, 8, (&raw mut mask).expose_provenance())?;
        Ok(mask)
    }

    /// Sets the signals that it blocks.
    pub fn set_blocked_signals(&self, mask: u64) -> Result<()> {
        let place = (&raw const mask).expose_provenance();
        request(libc::PTRACE_SETSIGMASK, self.thread, 8, place).map(drop)
    }

    /// The signals that wait for it alone, or for any thread of its process (`shared`), in the order of their arrival.
    pub fn pending_signals(&self, shared: bool) -> Result<Vec<SignalInfo>> {
        const AT_ONCE: usize = 16;
        let mut all = Vec::new();
        loop {
            // `struct ptrace_peeksiginfo_args`: an offset of 64 bits, flags, a count.
            let about = [all.len() as u64, u64::from(shared) | (AT_ONCE as u64) << 32];
            let mut some = [[0_u64; 16]; AT_ONCE];
            let places = (about.as_ptr().expose_provenance(), some.as_mut_ptr());
            let (at, place) = (places.0, places.1.expose_provenance());
            let count = request(libc::PTRACE_PEEKSIGINFO, self.thread, at, place)? as usize;
            all.extend(some.into_iter().take(count).map(SignalInfo));
            if count < AT_ONCE {
                return Ok(all);
            }
        }
    }

    /// The address, the length and the signature of its restartable sequences (`rseq(2)`, Linux 5.13); `None` without.
    pub fn rseq(&self) -> Result<Option<(u64, u32, u32)>> {
        // `struct ptrace_rseq_configuration`: an address of 64 bits, then length, signature, flags and padding.
        let mut about = [0_u32; 6];
        let place = about.as_mut_ptr().expose_provenance();
        request(GET_RSEQ_CONFIGURATION, self.thread, size_of_val(&about), place)?;
        let address = u64::from(about[0]) | u64::from(about[1]) << 32;
        Ok((address != 0).then_some((address, about[2], about[3])))
    }

    /// The address and the length of its list of robust mutexes (`get_robust_list(2)`).
    pub fn robust_list(&self) -> Result<(u64, u64)> {
        let (mut head, mut len) = (0_u64, 0_u64);
        // SAFETY: the kernel writes an address and a length through the two pointers.
        let answer = unsafe {
            passthrough::by_number()(
                libc::SYS_get_robust_list,
                self.thread,
                &raw mut head,
                &raw mut len,
            )
        };
        if answer == 0 { Ok((head, len)) } else { Err(errno::last()) }
    }
}

thread_local! {
    /// Threads that were dropped in a call that nothing interrupts: they stop behind it.
    static LATE: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

/// Lets threads go on that stopped only after they were dropped by this thread. False if some have not stopped yet.
pub fn let_late_ones_go() -> bool {
    LATE.with_borrow_mut(|late| {
        late.retain(|thread| {
            let mut tracee = Tracee::cloned(*thread);
            let runs = tracee.poll() == Ok(None);
            if runs {
                core::mem::forget(tracee);
            }
            runs
        });
        late.is_empty()
    })
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // Only a stopped thread can be let go. One that has ended is gone once it has been waited for.
        if !self.is_stopped
            && (self.interrupt().is_err() || self.wait().is_err())
            && !matches!(self.poll(), Ok(Some(_)))
        {
            if self.lives() {
                let _ = LATE
                    .try_with(|late| late.try_borrow_mut().map(|mut late| late.push(self.thread)));
            }
            return;
        }
        if self.has_ended {
            return;
        }
        if request(libc::PTRACE_DETACH, self.thread, 0, self.signal as usize).is_err() {
            // It has been killed. Until its tracer has seen its end, its parent cannot.
            let _ = self.wait();
        }
    }
}

fn meaning(status: i32) -> Stop {
    const CALL: i32 = libc::SIGTRAP | 0x80;
    if !libc::WIFSTOPPED(status) {
        return Stop::Ended;
    }
    match (status >> 16, libc::WSTOPSIG(status)) {
        (0, CALL) => Stop::Call,
        (0, signal) => Stop::Signal(signal),
        (libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK, _) => {
            Stop::Cloned
        }
        (_, libc::SIGTRAP) => Stop::Asked,
        _ => Stop::WithAll,
    }
}

fn request(request: u32, thread: i32, address: usize, data: usize) -> Result<i64> {
    // SAFETY: see the module; a `data` that is an address is one of a buffer of the caller's.
    let answer = unsafe {
        libc::ptrace(
            request,
            thread,
            core::ptr::with_exposed_provenance_mut::<c_void>(address),
            core::ptr::with_exposed_provenance_mut::<c_void>(data),
        )
    };
    if answer == -1 { Err(errno::last()) } else { Ok(answer) }
}

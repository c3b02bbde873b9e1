//! Calls that the tasks of a copy make one after the other, without a stop in between.
//!
//! ```text
//!  registers ─▶ call ─▶ "syscall; ret" ─▶ restorer: rt_sigreturn(2) ─▶ registers of the next call ─▶ … ─▶ SIGSTOP to itself
//! ```
//! It is the way back of an [injection](crate::inject), taken on purpose: a [`Caller`] stops its task twice a call, a chain once.
//! Answers are not seen, so a chain is for calls that do not fail, or with an effect that is looked at afterwards.

use cowslip_sys::ptrace::{Registers, Stop, Tracee};
use cowslip_sys::{AsFd, Errno, OwnedFd, Result, memfile};
use libc::{
    MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE, SIGSTOP, SYS_mmap, SYS_munmap, SYS_tgkill,
    c_long,
};

use super::caller::Caller;
use crate::inject::{FRAME_PLACE, Sites, frame};

/// A call: its number and its arguments.
pub(super) type Call = (c_long, [u64; 6]);

/// Memory of a copy for frames and for arguments of calls, until it runs.
pub(crate) struct Chains {
    sites: Sites,
    /// The registers of the task that is to make calls.
    now: Registers,
    process: i32,
    start: u64,
    /// Its content, from the beginning.
    bytes: Vec<u8>,
    len: usize,
}

impl Chains {
    /// Maps `len` bytes, by a call of the main thread, `process`.
    pub(crate) fn new(
        main: &mut Caller<'_>,
        sites: Sites,
        process: i32,
        len: usize,
    ) -> Result<Self> {
        let (access, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        let start = main.call(SYS_mmap, &[0, len as u64, access as u64, flags as u64, !0, 0])?;
        Ok(Self { sites, now: main.registers(), process, start, bytes: Vec::new(), len })
    }

    /// Adds bytes that a call reads, and returns their address.
    pub(super) fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(at, 0);
        self.bytes.extend(bytes);
        self.start + at as u64
    }

    /// Adds words of 64 bits.
    pub(super) fn put_words(&mut self, words: &[u64]) -> u64 {
        self.put(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>())
    }

    /// Adds the calls of a task, and returns the registers with which it makes them.
    pub(super) fn add(&mut self, task: i32, calls: &[Call]) -> Registers {
        let stop = [self.process as u64, task as u64, SIGSTOP as u64, 0, 0, 0];
        let calls: Vec<Call> = calls.iter().copied().chain([(SYS_tgkill, stop)]).collect();
        let at = self.bytes.len().next_multiple_of(64);
        self.bytes.resize(at, 0);
        // The frame of a call is under the stack pointer of the call before.
        let place = |i: usize| self.start + (at + i * FRAME_PLACE) as u64;
        let registers = |i: usize| {
            let (number, arguments) = calls[i];
            Registers { rsp: place(i + 1), ..self.sites.call(&self.now, number, arguments) }
        };
        for i in 0..calls.len() {
            self.bytes.extend(frame(&self.sites, &registers(i), !0, 0));
            self.bytes.resize(at + (i + 1) * FRAME_PLACE, 0);
        }
        registers(0)
    }

    /// Writes the added bytes.
    pub(super) fn write(&self, memory: &OwnedFd) -> Result<()> {
        match self.bytes.len() <= self.len {
            true => memfile::write_at(memory.as_fd(), &self.bytes, self.start),
            false => Err(Errno::NOBUFS),
        }
    }

    /// Unmaps the memory.
    pub(crate) fn end(self, main: &mut Caller<'_>) -> Result<()> {
        main.call(SYS_munmap, &[self.start, self.len as u64]).map(drop)
    }
}

/// Lets a stopped task make the calls of a chain.
pub(super) fn begin(task: &mut Tracee, registers: &Registers) -> Result<()> {
    task.set_blocked_signals(!0)?;
    task.set_registers(registers)?;
    task.go_on_alone()
}

/// Waits until it has made all of them. Returns the tasks that they started, in order; each is about to stop.
pub(super) fn finish(task: &mut Tracee) -> Result<Vec<Tracee>> {
    let mut started = Vec::new();
    loop {
        match task.wait_long()? {
            Stop::Cloned => started.push(Tracee::cloned(task.event_message()? as i32)),
            Stop::Signal(SIGSTOP) => {
                task.forget_signal();
                // Another process may have sent one as well.
                if task.registers()?.rdx == SIGSTOP as u64 {
                    return Ok(started);
                }
            }
            Stop::Ended => return Err(Errno::SRCH),
            _ => {}
        }
        task.go_on_alone()?;
    }
}

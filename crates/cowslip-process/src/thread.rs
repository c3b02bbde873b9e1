//! The state of a thread, besides memory.

use std::fmt;

use cowslip_sys::ptrace::{Registers, SignalInfo, Tracee};
use cowslip_sys::scheduling::{Processors, Scheduling};
use cowslip_sys::{BorrowedFd, Errno, Result, memfile, procfs};

use crate::inject::{AlternateStack, Answers, abort_of_sequence, after_restart};

/// A thread at the instant of a [`Holder`](crate::Holder).
#[derive(Clone)]
pub struct ThreadState {
    /// Its number.
    pub id: i32,
    /// Its name (`PR_SET_NAME`).
    pub name: String,
    /// Its general registers. In an interrupted call `rax` is an error that only the kernel sees, such as `ERESTARTSYS`.
    pub registers: Registers,
    /// Its floating point and vector registers, in the standard format of `XSAVE`.
    pub vectors: Vec<u8>,
    /// The signals that it blocks; the lowest bit is signal 1.
    pub blocked: u64,
    /// The signals that wait for it alone.
    pub pending: Vec<SignalInfo>,
    /// Its list of robust mutexes (`get_robust_list(2)`): address and length.
    pub robust_list: (u64, u64),
    /// Its restartable sequences (`rseq(2)`): address, length and signature.
    pub rseq: Option<(u64, u32, u32)>,
    /// The address that the kernel clears at its end (`set_tid_address(2)`); 0: none, or unknown.
    pub clear_tid: u64,
    /// Its alternate stack; `None` if the thread could not be asked.
    pub alternate_stack: Option<AlternateStack>,
    /// The processors that it may run on, and its policy, niceness or priority; `None` where the kernel did not say.
    pub scheduling: (Option<Processors>, Option<Scheduling>),
    waits_in: Option<Registers>,
    /// It is in a restartable sequence, which ends there.
    aborts_at: Option<u64>,
}

impl fmt::Debug for ThreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rip, rsp) = (self.registers.rip, self.registers.rsp);
        write!(f, "ThreadState {{ id: {}, rip: {rip:#x}, rsp: {rsp:#x}, .. }}", self.id)
    }
}

/// The place of a thread's number in glibc's `struct pthread`.
const GLIBC_TID: u64 = 0x2d0;
/// The place of its links in a list of threads there.
const GLIBC_LINKS: u64 = 0x2c0;

/// The name of a thread (`PR_SET_NAME`).
pub(crate) fn name(pid: i32, thread: i32) -> String {
    let name = procfs::read_text(format!("/proc/{pid}/task/{thread}/comm"));
    name.unwrap_or_default().trim_end_matches('\n').to_owned()
}

impl ThreadState {
    /// Its registers, such that an interrupted call begins anew, and a restartable sequence ends.
    pub fn restarted(&self) -> Registers {
        let registers = after_restart(self.registers, self.waits_in);
        Registers { rip: self.aborts_at.unwrap_or(registers.rip), ..registers }
    }

    /// The address of its links in a list of threads of glibc's.
    pub(crate) fn links_at(&self) -> u64 {
        self.registers.fs_base.wrapping_add(GLIBC_LINKS)
    }

    /// The state of a stopped thread, of process `pid`, with the answers that it gave before.
    pub(crate) fn read(
        tracee: &Tracee,
        pid: i32,
        memory: BorrowedFd<'_>,
        answers: Option<&Answers>,
    ) -> Result<Self> {
        let registers = tracee.registers()?;
        let place = registers.fs_base.wrapping_add(GLIBC_TID);
        let mut id = [0; 4];
        let is_there = registers.fs_base != 0
            && memfile::read_exact_at(memory, &mut id, place).is_ok()
            && i32::from_ne_bytes(id) == tracee.thread();
        let answers = answers.copied().unwrap_or_default();
        Ok(Self {
            id: tracee.thread(),
            name: name(pid, tracee.thread()),
            registers,
            vectors: tracee.extended_state()?,
            blocked: tracee.blocked_signals()?,
            pending: tracee.pending_signals(false)?,
            robust_list: tracee.robust_list()?,
            rseq: match tracee.rseq() {
                // Linux before 5.13.
                Err(Errno::IO | Errno::INVAL) => None,
                known => known?,
            },
            clear_tid: answers.clear_tid.unwrap_or(if is_there { place } else { 0 }),
            alternate_stack: answers.alternate_stack,
            scheduling: (
                Processors::from_thread(tracee.thread()).ok(),
                Scheduling::from_thread(tracee.thread()).ok(),
            ),
            waits_in: answers.waits_in,
            aborts_at: abort_of_sequence(tracee, registers.rip, memory),
        })
    }
}

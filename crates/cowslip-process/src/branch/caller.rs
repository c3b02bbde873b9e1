//! A stopped task that makes calls on this process' behalf, one after the other.
//!
//! Unlike an [injection](crate::inject) it has nothing to get back: the task is a copy, and runs its program only once it is
//! whole. If this process ends before, the kernel ends the copy (`PTRACE_O_EXITKILL`).

use cowslip_sys::ptrace::{Registers, Tracee};
use cowslip_sys::target::Target;
use cowslip_sys::{AsFd, Errno, OwnedFd, Result, memfile};
use libc::c_long;

use crate::inject::{FRAME_PLACE, Sites, through_call};

/// The memory that answers and arguments may take: behind the frame of the injected fork's child, where no copy needs it.
const SCRATCH_BYTES: usize = 768;

/// See the [module](self).
pub(crate) struct Caller<'a> {
    tracee: &'a mut Tracee,
    memory: &'a OwnedFd,
    sites: Sites,
    registers: Registers,
}

impl<'a> Caller<'a> {
    /// A stopped task. Its stack pointer is that of the [injected fork](crate::inject::Injection::fork).
    pub(crate) fn new(tracee: &'a mut Tracee, memory: &'a OwnedFd, sites: Sites) -> Result<Self> {
        let registers = tracee.registers()?;
        tracee.set_blocked_signals(!0)?;
        Ok(Self { tracee, memory, sites, registers })
    }

    /// Makes a call.
    pub(crate) fn call(&mut self, number: c_long, arguments: &[u64]) -> Result<u64> {
        self.run(number, arguments).map(|(answer, _)| answer)
    }

    /// The registers between its calls.
    pub(crate) fn registers(&self) -> Registers {
        self.registers
    }

    /// Makes a call that starts a task, which is stopped then.
    pub(super) fn start(&mut self, number: c_long, arguments: &[u64]) -> Result<Tracee> {
        let (_, started) = self.run(number, arguments)?;
        let mut started = started.ok_or(Errno::SRCH)?;
        started.wait_long()?;
        if started.has_ended() { Err(Errno::SRCH) } else { Ok(started) }
    }

    fn run(&mut self, number: c_long, arguments: &[u64]) -> Result<(u64, Option<Tracee>)> {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        self.tracee.set_registers(&self.sites.call(&self.registers, number, all))?;
        match through_call(self.tracee)? {
            (errno @ -4095..0, _) => Err(Errno::from_raw_os_error(-errno as i32)),
            (answer, started) => Ok((answer as u64, started)),
        }
    }

    /// The address of a place in the scratch memory.
    pub(crate) fn place(&self, at: usize) -> u64 {
        debug_assert!(at < SCRATCH_BYTES);
        self.registers.rsp + (FRAME_PLACE + at) as u64
    }

    /// Writes bytes there, and returns the address.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) -> Result<u64> {
        if at + bytes.len() > SCRATCH_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        memfile::write_at(self.memory.as_fd(), bytes, self.place(at))?;
        Ok(self.place(at))
    }

    /// Writes words of 64 bits there, and returns the address.
    pub(crate) fn put_words(&self, at: usize, words: &[u64]) -> Result<u64> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.put(at, &bytes)
    }

    /// Reads bytes from there.
    pub(crate) fn get<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        memfile::read_exact_at(self.memory.as_fd(), &mut bytes, self.place(at))?;
        Ok(bytes)
    }

    /// Reads two descriptors from the beginning.
    pub(super) fn get_pair(&self) -> Result<[u64; 2]> {
        let words = u64::from_ne_bytes(self.get(0)?);
        Ok([words & u64::from(u32::MAX), words >> 32])
    }
}

/// Opens the memory of a task that is about to make calls.
pub(crate) fn memory_of(task: &Tracee) -> Result<(Target, OwnedFd)> {
    let target = Target::open(task.thread())?;
    let memory = target.open_memory()?;
    Ok((target, memory))
}

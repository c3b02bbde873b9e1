//! The threads of the instant: new ones end, and those that have ended are started again.

use std::time::Duration;

use cowslip_sys::error::{Error, Result};
use cowslip_sys::ptrace::{Stop, Tracee};
use cowslip_sys::{BorrowedFd, Errno, OwnedFd};
use libc::SYS_exit;

use super::{Mark, refused};
use crate::branch::{BYTES_PER_THREAD, Caller, Chains, equip, schedule};
use crate::hold::Service;
use crate::look::{failed, field};
use crate::stop::Threads;
use crate::thread::ThreadState;

impl Mark {
    /// The threads that have ended since.
    pub(super) fn ended(&self, threads: &Threads) -> Vec<&ThreadState> {
        let live = |id: i32| threads.all.iter().any(|tracee| tracee.thread() == id);
        self.holder.threads().iter().filter(|thread| !live(thread.id)).collect()
    }

    /// Starts threads that have ended, stopped. All or none.
    pub(super) fn start(
        &self,
        threads: &mut Threads,
        ended: &[&ThreadState],
        maps: &str,
        memory: BorrowedFd<'_>,
    ) -> Result<Vec<Tracee>> {
        let mut started = Vec::new();
        for thread in ended {
            match self.start_one(threads, thread, maps, memory) {
                Ok(next) => started.push(next),
                Err(error) => {
                    started
                        .iter_mut()
                        .try_for_each(|tracee| self.end_thread(tracee))
                        .map_err(failed)?;
                    return Err(error);
                }
            }
        }
        Ok(started)
    }

    fn start_one(
        &self,
        threads: &mut Threads,
        thread: &ThreadState,
        maps: &str,
        memory: BorrowedFd<'_>,
    ) -> Result<Tracee> {
        /// For the kernel to free the number of a thread that has ended: it is in no list by then.
        const MOST_NAPS: u32 = 200;
        for _ in 0..MOST_NAPS {
            match self.injection(threads, maps, memory)?.start(thread) {
                Err(Errno::EXIST) => std::thread::sleep(Duration::from_millis(1)),
                started => {
                    return started.map_err(|errno| not_started(errno, thread));
                }
            }
        }
        Err(not_started(Errno::EXIST, thread))
    }

    /// Gives started threads the state that only they can set.
    pub(super) fn equip(
        &self,
        started: &mut [Tracee],
        states: &[&ThreadState],
        memory: &OwnedFd,
    ) -> Result<(), Errno> {
        let Some(first) = started.first_mut() else { return Ok(()) };
        let (sites, pid) = (self.holder.sites(), self.holder.program());
        let mut caller = Caller::new(first, memory, sites)?;
        let (now, room) = (caller.registers(), (states.len() + 1) * BYTES_PER_THREAD);
        let mut chains = Chains::new(&mut caller, sites, pid, room)?;
        equip(&mut chains, memory, started, states)?;
        started[0].set_registers(&now)?;
        chains.end(&mut Caller::new(&mut started[0], memory, sites)?)?;
        started.iter().zip(states).for_each(|(tracee, state)| schedule(tracee, state));
        Ok(())
    }

    /// Ends the threads that have come since, before their stacks go: the kernel still writes to those.
    pub(super) fn end_new(&self, threads: &mut Threads) -> Result<()> {
        for tracee in &threads.all {
            tracee.take_over().map_err(failed)?;
        }
        let is_new = |tracee: &&mut Tracee| {
            let is_service = |service: &Service| service.id == tracee.thread();
            self.state_of(tracee).is_none() && !self.services().iter().any(is_service)
        };
        for tracee in threads.all.iter_mut().filter(is_new) {
            self.end_thread(tracee).map_err(failed)?;
        }
        threads.all.retain(|tracee| !tracee.has_ended());
        Ok(())
    }

    /// Ends a thread that has come since. The changes of memory at its end are taken back, too.
    pub(super) fn end_thread(&self, tracee: &mut Tracee) -> Result<(), Errno> {
        let now = tracee.registers()?;
        tracee.set_blocked_signals(!0)?;
        tracee.set_registers(&self.holder.sites().call(&now, SYS_exit, [0; 6]))?;
        // A signal may have stopped the program.
        tracee.go_on_alone()?;
        while tracee.wait_long()? != Stop::Ended {
            tracee.go_on_alone()?;
        }
        Ok(())
    }
}

/// Fails unless threads that have ended can be, and are to be, started again.
pub(super) fn refuse_ended(ended: &[&ThreadState], starts_them: bool, status: &str) -> Result<()> {
    let numbers: Vec<_> = ended.iter().map(|thread| thread.id.to_string()).collect();
    let error = refused(format!("threads have ended since: {}", numbers.join(", ")));
    if !starts_them {
        return Err(error.advise("cowslip rollback --force starts them again"));
    }
    if ended.iter().any(|thread| thread.alternate_stack.is_none()) {
        return Err(error.advise("one of them could not be asked for its stack: mark it again"));
    }
    // They have other numbers inside.
    match field(status, "NStgid").split_ascii_whitespace().nth(1) {
        Some(_) => Err(error.advise("mark it from inside of its container")),
        None => Ok(()),
    }
}

fn not_started(errno: Errno, thread: &ThreadState) -> Error {
    let error = Error::from_errno("start a thread again", errno);
    match errno {
        Errno::PERM => error.advise("the program must have CAP_CHECKPOINT_RESTORE: run it as root"),
        Errno::EXIST => error.because(format!("its number {} is another one's by now", thread.id)),
        _ => error,
    }
}

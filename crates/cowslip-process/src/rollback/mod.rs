//! Takes a program back to the instant of its holder, in place.
//!
//! ```text
//!  stop all ─▶ threads, files, ─no─▶ memory that is gone ─▶ new ones end ─▶ pages that differ ─▶ registers, offsets ─▶ go on
//!  threads     descriptors gone?     is mapped again         └──── the program ends if this process does ────┘
//!                yes: refused, and it goes on; threads are started again, if asked for
//! ```
//! A page that the program and the holder still share, by the number of its frame, has not been written. Without the right to
//! see these numbers both pages are read.

mod mappings;
mod memory;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::ptrace::{Stop, Tracee};
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd, packets};
use libc::{SYS_close, SYS_close_range, SYS_exit};

use crate::branch::{BYTES_PER_THREAD, Caller, Chains, equip, memory_of, schedule, set_state};
use crate::descriptors::{self, DescriptorState};
use crate::hold::{Holder, with_room};
use crate::inject::Injection;
use crate::kept::missing;
use crate::look::{failed, field, is_filtered};
use crate::stop::Threads;
use crate::thread::ThreadState;

const OPERATION: &str = "roll back a process";

/// An instant of a program to which it can be taken back, any number of times.
#[derive(Debug)]
pub struct Mark {
    holder: Holder,
    /// The descriptors of the instant, and the names of their files.
    links: BTreeMap<i32, String>,
}

/// The effect of a [rollback](Mark::roll_back).
#[derive(Clone, Copy, Debug)]
pub struct RolledBack {
    /// The memory that was written.
    pub bytes: u64,
    /// The time for which the program stood still.
    pub pause: Duration,
}

impl Mark {
    /// Keeps the instant of a holder. It closes the holder's files: connections are the program's to close.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if the holder is [lent](Holder::lend); [`ErrorKind::Unsupported`] for a program under `cowslip run`.
    pub fn new(mut holder: Holder) -> Result<Self> {
        let operation = "mark a process";
        if holder.has_library() {
            return Err(Error::new(ErrorKind::Unsupported, operation)
                .because("it is under cowslip run, whose library knows the memory of now")
                .advise("mark a program that was started without it"));
        }
        let links = descriptors::links(holder.pid()).during(operation)?.into_iter().collect();
        let sites = holder.sites();
        let child = holder
            .stopped()
            .ok_or_else(|| Error::new(ErrorKind::Busy, operation).because("the holder is lent"))?;
        child.take_over().during(operation)?;
        let (_, memory) = memory_of(child).during(operation)?;
        let mut caller = Caller::new(child, &memory, sites).during(operation)?;
        caller.call(SYS_close_range, &[0, u32::MAX.into(), 0]).during(operation)?;
        Ok(Self { holder, links })
    }

    /// The instant.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Takes the program back. Memory, registers, signal masks, offsets of files and counts of eventfds are then those of the
    /// instant. Content of files, of pipes and of sockets, and timers, stay.
    ///
    /// Memory that was unmapped since is mapped again, threads that have ended are started again if `starts_ended`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if threads, mappings of files or descriptors that it had then are gone;
    /// [`ErrorKind::Denied`] if it may not give a thread its number; [`ErrorKind::Vanished`] once it has ended. It goes on as it
    /// is. If it cannot be made whole, which is not expected, the program ends.
    pub fn roll_back(&self, starts_ended: bool) -> Result<RolledBack> {
        let (target, held) = self.holder.both();
        let mut threads = Threads::seize(target.pid()).map_err(failed)?;
        let began = Instant::now();
        threads.stop().map_err(failed)?;
        let status = target.read_file("status").map_err(failed)?;
        let ended = self.ended(&threads);
        if !ended.is_empty() {
            refuse_ended(&ended, starts_ended, &status)?;
        }
        if is_filtered(&status) {
            return Err(refused("it has a filter of calls since (seccomp(2))".into()));
        }
        let maps = [held, target].map(|process| process.read_file("maps").map_err(failed));
        let [then, now] = maps;
        let (then, now) = (then?, now?);
        let mut changes = mappings::changes(&then, &now).map_err(refused)?;
        let opened = self.opened_since()?;
        changes.back.extend(opened.map(|number| (SYS_close, [number as u64, 0, 0, 0])));
        let memory = target.open_memory().map_err(failed)?;
        self.injection(&mut threads, &now, memory.as_fd())?
            .make(&changes.again)
            .during("map memory that was unmapped")?;
        if !changes.again.is_empty() {
            let now = target.read_file("maps").map_err(failed)?;
            if let Some(range) = missing(&then, &now).first() {
                return Err(refused(format!("memory was unmapped since: {range}")));
            }
        }
        let mut started = self.start(&mut threads, &ended, &now, memory.as_fd())?;
        // From here on it is neither as then nor as now.
        let changed = self.end_new(&mut threads).and_then(|()| {
            let injection = self.injection(&mut threads, &now, memory.as_fd())?;
            injection.make(&changes.back).map_err(failed)?;
            // The one that made the calls has been let go of in part.
            threads.all.iter().chain(&started).try_for_each(Tracee::take_over).map_err(failed)?;
            let bytes = memory::copy_back(held, target, &then).during(OPERATION)?;
            self.equip(&mut started, &ended, &memory).during("start threads again")?;
            threads.all.append(&mut started);
            self.write_state(&threads).map(|()| bytes)
        });
        let bytes = changed.inspect_err(|_| _ = target.end())?;
        threads.go_on();
        Ok(RolledBack { bytes, pause: began.elapsed() })
    }

    /// A thread of then that makes calls.
    fn injection<'a>(
        &self,
        threads: &'a mut Threads,
        maps: &str,
        memory: BorrowedFd<'a>,
    ) -> Result<Injection<'a>> {
        let (caller, room) =
            with_room(threads, maps, memory, |tracee| self.state_of(tracee).is_some())
                .ok_or_else(|| refused("none of its threads has room for a call".into()))?;
        Injection::prepare(caller, room, memory, self.holder.sites()).map_err(failed)
    }

    /// Starts threads that have ended, stopped. All or none.
    fn start(
        &self,
        threads: &mut Threads,
        ended: &[&ThreadState],
        maps: &str,
        memory: BorrowedFd<'_>,
    ) -> Result<Vec<Tracee>> {
        let mut started = Vec::new();
        for thread in ended {
            let next = self.injection(threads, maps, memory)?.start(thread);
            match next {
                Ok(next) => started.push(next),
                Err(errno) => {
                    started
                        .iter_mut()
                        .try_for_each(|tracee| self.end_thread(tracee))
                        .map_err(failed)?;
                    let error = Error::from_errno("start threads again", errno);
                    return Err(match errno {
                        Errno::PERM => error
                            .advise("the program must have CAP_CHECKPOINT_RESTORE: run it as root"),
                        _ => error,
                    });
                }
            }
        }
        Ok(started)
    }

    /// Gives started threads the state that only they can set.
    fn equip(
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
    fn end_new(&self, threads: &mut Threads) -> Result<()> {
        for tracee in &threads.all {
            tracee.take_over().map_err(failed)?;
        }
        for tracee in threads.all.iter_mut().filter(|tracee| self.state_of(tracee).is_none()) {
            self.end_thread(tracee).map_err(failed)?;
        }
        threads.all.retain(|tracee| !tracee.has_ended());
        Ok(())
    }

    /// Ends a thread that has come since. The changes of memory at its end are taken back, too.
    fn end_thread(&self, tracee: &mut Tracee) -> Result<(), Errno> {
        let now = tracee.registers()?;
        tracee.set_blocked_signals(!0)?;
        tracee.set_registers(&self.holder.sites().call(&now, SYS_exit, [0; 6]))?;
        tracee.go_on()?;
        while tracee.wait_long()? != Stop::Ended {
            tracee.go_on()?;
        }
        Ok(())
    }

    fn state_of(&self, tracee: &Tracee) -> Option<&ThreadState> {
        self.holder.threads().iter().find(|state| state.id == tracee.thread())
    }

    fn write_state(&self, threads: &Threads) -> Result<()> {
        for (tracee, state) in threads.all.iter().filter_map(|t| Some((t, self.state_of(t)?))) {
            set_state(tracee, state).during(OPERATION)?;
        }
        for state in self.holder.descriptors() {
            self.put_back(state).during(OPERATION)?;
        }
        threads.all.iter().try_for_each(|tracee| tracee.trace_clones(false)).map_err(failed)
    }

    /// The threads that have ended since.
    fn ended(&self, threads: &Threads) -> Vec<&ThreadState> {
        let live = |id: i32| threads.all.iter().any(|tracee| tracee.thread() == id);
        self.holder.threads().iter().filter(|thread| !live(thread.id)).collect()
    }

    /// Descriptors that the program did not have then.
    fn opened_since(&self) -> Result<impl Iterator<Item = i32>> {
        let (target, _) = self.holder.both();
        let now: BTreeMap<_, _> =
            descriptors::links(target.pid()).map_err(failed)?.into_iter().collect();
        let gone = self.links.iter().find(|(number, link)| now.get(number) != Some(link));
        if let Some((number, link)) = gone {
            return Err(refused(format!("descriptor {number}, {link}, was closed since")));
        }
        let new: Vec<i32> =
            now.into_keys().filter(|number| !self.links.contains_key(number)).collect();
        Ok(new.into_iter())
    }

    /// Sets an open file to its state of the instant.
    fn put_back(&self, then: &DescriptorState) -> Result<(), Errno> {
        let (target, _) = self.holder.both();
        let now = descriptors::state(target.pid(), then.number).ok_or(Errno::BADF)?;
        let offset = then.number("pos", 10);
        let count = then.number("eventfd-count", 16);
        let is_same = now.number("pos", 10) == offset && now.number("eventfd-count", 16) == count;
        // Other processes write there, too, and would write over it.
        let is_output = [1, 2].into_iter().any(|output| {
            then.number == output || target.is_same_file(then.number, output) == Ok(true)
        });
        if is_same || count.is_none() && is_output {
            return Ok(());
        }
        let mut file = File::from(target.descriptor(then.number)?);
        let mut put = || match count {
            Some(count) => {
                // Other processes may read it meanwhile: a read must not wait for them.
                while packets::wait(file.as_fd(), Some(Duration::ZERO))? {
                    file.read_exact(&mut [0; 8])?;
                }
                if count > 0 { file.write_all(&count.to_ne_bytes()) } else { Ok(()) }
            }
            None => file.seek(SeekFrom::Start(offset.unwrap_or(0))).map(drop),
        };
        let done: std::io::Result<()> = put();
        done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// Fails unless threads that have ended can be, and are to be, started again.
fn refuse_ended(ended: &[&ThreadState], starts_them: bool, status: &str) -> Result<()> {
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

fn refused(why: String) -> Error {
    Error::new(ErrorKind::Unsupported, OPERATION).because(why)
}

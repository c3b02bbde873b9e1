//! The arenas of a program under `cowslip run`, taken back by its library.
//!
//! ```text
//!  a thread is in the library · Ready ─▶ all threads stop ─▶ what can be refused ─▶ Go ─▶ arenas as then · Back ─▶ all threads stop
//!                    ▲                        │ another one is in the library, too      │ refused
//!                    └── it goes on ◀─────────┘                                         └─▶ it goes on as it is
//! ```
//! The library's memory, its threads and its descriptors stay those of now. No thread of the program was in the library then,
//! and none but this one is now, so that none uses memory or a lock of it. This one never goes on there.

use std::time::Instant;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::hold_point::{self, Word};
use cowslip_sys::ptrace::Tracee;
use cowslip_sys::target::Target;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{BorrowedFd, Errno};

use super::{OPERATION, refused};
use crate::hold::{ATTEMPTS, BETWEEN_ATTEMPTS, Holder, PATIENCE_TO_FREEZE, Request, is_service};
use crate::library::Library;
use crate::look::failed;
use crate::stop::{Threads, interrupt};

/// A program that stands still, one thread of which is about to take the arenas back.
pub(super) struct Arenas<'a> {
    request: Request<'a>,
    memory: BorrowedFd<'a>,
    /// The moment in which the threads were stopped.
    pub(super) began: Instant,
    /// Memory that stays as it is, in order, with the arenas.
    pub(super) own_memory: Vec<VirtRange>,
    /// Descriptors of the library, which may change.
    pub(super) own_descriptors: Vec<i32>,
}

impl<'a> Arenas<'a> {
    /// Has a thread come to the library, and stops all of them.
    pub(super) fn ask(
        holder: &'a Holder,
        memory: BorrowedFd<'a>,
        library: &Library,
        threads: &mut Threads,
    ) -> Result<Self> {
        let (target, _) = holder.both();
        let wanted = hold_point::Request::RollBack(holder.pid());
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                threads.run_for(BETWEEN_ATTEMPTS);
            }
            let (known, _) = threads.ask(target, memory, holder.sites()).map_err(failed)?;
            let whole = (target, holder.sites());
            let sent = Request::send(wanted, whole, library, memory, threads, &known);
            let request = match sent {
                Ok(Some(request)) => request,
                Ok(None) | Err(Errno::AGAIN | Errno::TIMEDOUT) => continue,
                Err(errno) => return Err(failed(errno)),
            };
            let (began, own_memory, own_descriptors) = (Instant::now(), Vec::new(), Vec::new());
            let mut arenas = Self { request, memory, began, own_memory, own_descriptors };
            threads.stop().map_err(failed)?;
            match arenas.learn(holder, library, threads) {
                Ok(true) => return Ok(arenas),
                known => arenas.cancel(threads).and(known)?,
            };
        }
        Err(Error::new(ErrorKind::Busy, OPERATION)
            .because("none of its threads could call the library of cowslip run")
            .advise("try again when it is idle"))
    }

    /// Learns what stays as it is. False if another thread is in the library.
    fn learn(&mut self, holder: &Holder, library: &Library, threads: &Threads) -> Result<bool> {
        if !self.request.is_alone(library, threads).map_err(failed)? {
            return Ok(false);
        }
        let (target, _) = holder.both();
        let mut services = Vec::new();
        for tracee in &threads.all {
            if is_service(tracee, target.pid()).map_err(failed)? {
                services.push(tracee.thread());
            }
        }
        let then = holder.services().unwrap_or_default().iter().map(|service| service.id);
        let mut then: Vec<_> = then.collect();
        then.sort_unstable();
        services.sort_unstable();
        if services != then {
            return Err(refused("the library of cowslip run has other threads since".into()));
        }
        if library.now(self.memory).map_err(failed)? != *library {
            return Err(refused("it has another arena since".into()));
        }
        let area =
            self.request.read(self.memory).map_err(failed)?.own.ok_or_else(|| {
                refused("memory of cowslip run's library lies among its own".into())
            })?;
        let maps = target.read_file("maps").map_err(failed)?;
        if let Some(other) = Library::other_in(&maps, area) {
            return Err(refused(format!("{other} lies among the memory of cowslip run's library")));
        }
        self.own_memory = library.memory(&maps, self.memory, area).map_err(failed)?;
        self.own_descriptors = library.descriptors(self.memory).map_err(failed)?;
        Ok(true)
    }

    /// Has the arenas taken back, and stops all threads again. They end with this process. Returns the library's descriptors.
    /// On an error the arenas are as they were, and the threads stopped or not.
    pub(super) fn take_back(
        &self,
        threads: &mut Threads,
        library: &Library,
        target: &Target,
    ) -> Result<Vec<i32>> {
        let ends_with_us = |threads: &Threads, ends: bool| {
            let set = |tracee: &Tracee| tracee.end_with_this_process(ends);
            threads.all.iter().try_for_each(set).map_err(failed)
        };
        ends_with_us(threads, true)?;
        self.request.let_services_go_on(threads).map_err(failed)?;
        match self.tell(threads, Word::Go, Word::Back) {
            Ok(()) => {}
            Err(errno) if self.has_failed() => {
                stop_running(threads).map_err(failed)?;
                ends_with_us(threads, false)?;
                return Err(not_taken(errno));
            }
            Err(errno) => {
                // It may take them back later.
                let _ = target.end();
                return Err(failed(errno));
            }
        }
        // They are as then: from here on all of it must be.
        let left = library.descriptors(self.memory).and_then(|own| {
            self.tell(threads, Word::Leave, Word::Left)?;
            Ok(own)
        });
        left.map_err(|errno| {
            let _ = target.end();
            failed(errno)
        })
    }

    /// Returns true if the library says that the arenas are as they were.
    fn has_failed(&self) -> bool {
        self.request.read(self.memory).is_ok_and(|found| found.word == Some(Word::Failed))
    }

    /// Says a word to the thread, which is stopped, waits for its answer, and stops all threads.
    fn tell(&self, threads: &mut Threads, word: Word, answer: Word) -> Result<(), Errno> {
        let caller = threads.find(self.request.thread()).ok_or(Errno::SRCH)?;
        if !self.request.say(caller, word)? {
            return Err(Errno::TIMEDOUT);
        }
        caller.go_on_alone()?;
        // A signal that stops the program now must wait: it is neither as then nor as now.
        let passing = || threads.pass_on_but(|_| true);
        self.request.wait_for(answer, self.memory, PATIENCE_TO_FREEZE, passing)?;
        stop_running(threads)
    }

    /// Lets all threads go on as they are.
    pub(super) fn cancel(&self, threads: &mut Threads) -> Result<()> {
        self.request.cancel(threads).map_err(failed)
    }
}

/// Stops the threads that run.
fn stop_running(threads: &mut Threads) -> Result<(), Errno> {
    let mut running = threads.all.iter_mut().filter(|tracee| !tracee.is_stopped());
    running.try_for_each(interrupt)
}

fn not_taken(errno: Errno) -> Error {
    match errno {
        Errno::SRCH => refused("the library of cowslip run keeps no view of that instant".into()),
        Errno::NXIO => {
            refused("an arena could not be taken back, or memory there is not its own".into())
                .advise("cowslip run --log shows the reason")
        }
        errno if errno != Errno::AGAIN => failed(errno),
        _ => Error::new(ErrorKind::Busy, OPERATION)
            .because("its allocator is giving memory back")
            .advise("try again later"),
    }
}

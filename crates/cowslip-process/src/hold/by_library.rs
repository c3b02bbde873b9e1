//! The instant of a program under `cowslip run`.
//!
//! Its memory is in arenas, shared with its service threads: a child has it only once it is frozen. One of the program's
//! threads is [made to call](Injection::enter) the library, which freezes it, and [forks](cowslip_sys::hold_point) once all
//! threads are stopped. The library's own threads are in no copy.

use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::hold_point::Word;
use cowslip_sys::ptrace::{Stop, Tracee};
use cowslip_sys::target::Target;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, Errno, memfile};
use libc::{MADV_DOFORK, MADV_DONTFORK, SYS_madvise};

use super::request::{Known, PATIENCE, PATIENCE_TO_FREEZE, Request, is_service};
use super::services::Service;
use super::{ATTEMPTS, ATTEMPTS_TO_ASK, BETWEEN_ATTEMPTS, Files, Holder, Stopped, with_room};
use crate::descriptors;
use crate::inject::Injection;
use crate::kept::missing;
use crate::library::Library;
use crate::look::{OPERATION, Plan, failed, in_descriptors, lack_shared};
use crate::shared::{self, ANONYMOUS};
use crate::stop::{Threads, interrupt, stop_one};
use crate::thread::ThreadState;

/// Attempts after answers that were late: the machine may have stood still.
const MOST_LATE: u32 = 3;

/// Holds the process, and finds out which parts of its memory the holder lacks.
pub(super) fn hold_once(plan: &Plan, library: &Library) -> Result<(Holder, Vec<VirtRange>)> {
    let target = &*plan.target;
    let memory = target.open_memory().map_err(failed)?;
    let memory = memory.as_fd();
    let mut threads = Threads::seize(target.pid()).map_err(failed)?;
    let (mut known, timers) = threads.ask(target, memory, plan.sites).map_err(failed)?;
    let mut late = 0;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            threads.run_for(BETWEEN_ATTEMPTS);
            let (more, _) = threads.ask(target, memory, plan.sites).map_err(failed)?;
            known.extend(more);
        }
        let (whole, sites) = (&*plan.target, plan.sites);
        let asked = plan.request();
        let sent = Request::send(asked, (whole, sites), library, memory, &mut threads, &known);
        let request = match sent {
            // One of its threads has a lock that a copy would miss.
            Ok(None) | Err(Errno::AGAIN) => continue,
            Err(Errno::TIMEDOUT) if late < MOST_LATE => {
                late += 1;
                continue;
            }
            Ok(Some(request)) => request,
            Err(errno) => return Err(refused(errno)),
        };
        let must_be_known = attempt < ATTEMPTS_TO_ASK;
        match request.hold(plan, library, &mut threads, &known, must_be_known) {
            Ok(Some(mut instant)) => {
                // The holder's end is a call of the program's.
                drop(threads);
                instant.holder.timers = timers;
                instant.holder.own_shared()?;
                let lacking = instant.lacking(plan)?;
                return Ok((instant.holder, lacking));
            }
            not_held => {
                request.cancel(&mut threads).map_err(failed)?;
                match not_held {
                    Err(error) if error.kind() == ErrorKind::Busy && late < MOST_LATE => late += 1,
                    not_held => _ = not_held?,
                }
            }
        }
    }
    Err(Error::new(ErrorKind::Busy, OPERATION)
        .because("none of its threads could call the library of cowslip run")
        .advise("try again when it is idle"))
}

fn refused(errno: Errno) -> Error {
    let error = |kind, why| Error::new(kind, OPERATION).because(why);
    match errno {
        Errno::OPNOTSUPP => error(
            ErrorKind::Unsupported,
            "it has memory that is empty in children (MADV_WIPEONFORK)",
        ),
        Errno::BUSY => error(
            ErrorKind::Busy,
            "the kernel or a device has had its memory registered: a copy would not be of one instant",
        ),
        Errno::NXIO => error(
            ErrorKind::Unsupported,
            "some memory there is not, or no longer, its arenas': it was locked (mlock(2)), registered with the kernel, or \
             mapped over (MAP_FIXED)",
        ),
        Errno::NODEV => error(
            ErrorKind::Unsupported,
            "its arenas are its parent's, or have no service thread, which needs userfaultfd(2)",
        ),
        Errno::TIMEDOUT | Errno::AGAIN | Errno::CANCELED => {
            error(ErrorKind::Busy, "its library of cowslip run could not fork in time")
                .advise("try again later")
        }
        _ => failed(errno),
    }
}

/// A held program, with the mappings that it had.
struct Held {
    holder: Holder,
    library: Library,
    maps: String,
    /// Those that the child was born with.
    born: String,
    /// Memory of the library's threads.
    apart: Vec<VirtRange>,
}

impl Request<'_> {
    /// Stops all threads, and has this one fork. `None` if the state of some thread is not known, and must be.
    fn hold(
        &self,
        plan: &Plan,
        library: &Library,
        threads: &mut Threads,
        known: &Known,
        must_be_known: bool,
    ) -> Result<Option<Held>> {
        threads.stop().map_err(failed)?;
        let maps = self.target.read_file("maps").map_err(failed)?;
        // It may have an arena since the look.
        let library = library.now(self.memory).map_err(failed)?;
        let own = library.own(&maps);
        let (states, left_out) = self.states(threads, known).map_err(failed)?;
        if plan.is_mark && !self.is_alone(&library, threads).map_err(failed)? {
            return Ok(None);
        }
        let services = match plan.is_mark {
            true => Some(Service::all(&left_out, self.memory)?),
            false => None,
        };
        let stopped = Stopped::take(plan, maps, &own, self.memory, threads, states)?;
        if must_be_known && !stopped.is_known() {
            return Ok(None);
        }
        let advise = |threads: &mut Threads, advice: i32| {
            let call = |range: &VirtRange| {
                (SYS_madvise, [range.start as u64, range.len as u64, advice as u64, 0])
            };
            let calls: Vec<_> = stopped.kept.iter().map(call).collect();
            if calls.is_empty() {
                return Ok(());
            }
            let caller = with_room(threads, &stopped.maps, self.memory, |_| true);
            let (caller, room) = caller.ok_or(Errno::AGAIN)?;
            Injection::prepare(caller, room, self.memory, plan.sites)?.make(&calls)
        };
        let advised = advise(threads, MADV_DOFORK);
        let forked = advised.and_then(|()| self.fork(plan.is_mark, threads));
        advise(threads, MADV_DONTFORK).map_err(refused)?;
        let (mut child, apart) = forked.map_err(refused)?;
        let files = Files::read(plan);
        threads.go_on();
        let pause = self.began.elapsed();
        let (held, born) = self.park(&mut child, plan, &left_out).map_err(refused)?;
        let maps = stopped.maps.clone();
        let mut holder = Holder::new(plan, stopped, files, (child, held), pause)?;
        holder.services = services;
        holder.library = Some(library.clone());
        Ok(Some(Held { holder, library, maps, born, apart }))
    }

    /// The states of the program's threads, and those of the library's.
    fn states(
        &self,
        threads: &Threads,
        known: &Known,
    ) -> cowslip_sys::Result<(Vec<ThreadState>, Vec<ThreadState>)> {
        let mut states = (Vec::new(), Vec::new());
        for tracee in &threads.all {
            let id = tracee.thread();
            if id == self.thread.id {
                // Signals may have come while it was in the library.
                let mut state = self.thread.clone();
                state.pending = tracee.pending_signals(false)?;
                states.0.push(state);
                continue;
            }
            let state = ThreadState::read(tracee, self.target.pid(), self.memory, known.get(&id))?;
            match is_service(tracee, self.target.pid())? {
                true => states.1.push(state),
                false => states.0.push(state),
            }
        }
        Ok(states)
    }

    /// Has the thread fork: the child is seized, and about to stop. Also returns memory that children lack.
    fn fork(
        &self,
        is_mark: bool,
        threads: &mut Threads,
    ) -> cowslip_sys::Result<(Tracee, Vec<VirtRange>)> {
        if is_mark {
            // It freezes only now.
            self.let_services_go_on(threads)?;
        }
        let tracee = threads.find(self.thread.id).ok_or(Errno::SRCH)?;
        let apart = self.read(self.memory)?.apart;
        tracee.trace_clones(true)?;
        let patience = if is_mark { PATIENCE_TO_FREEZE } else { PATIENCE };
        let forked = match self.say(tracee, Word::Go)? {
            true => self.until_forked(threads, patience),
            false => Err(Errno::TIMEDOUT),
        };
        let tracee = threads.find(self.thread.id).ok_or(Errno::SRCH)?;
        if !tracee.has_ended() {
            tracee.trace_clones(false)?;
        }
        forked.map(|child| (child, apart))
    }

    /// Waits until the thread is behind its fork.
    fn until_forked(
        &self,
        threads: &mut Threads,
        patience: Duration,
    ) -> cowslip_sys::Result<Tracee> {
        let began = Instant::now();
        let mut is_asked = false;
        threads.find(self.thread.id).ok_or(Errno::SRCH)?.go_on_alone()?;
        loop {
            // The library's own, for which a freeze waits.
            threads.run_on_but(self.thread.id);
            let tracee = threads.find(self.thread.id).ok_or(Errno::SRCH)?;
            match tracee.poll()? {
                Some(Stop::Cloned) => {
                    self.has_forked.set(true);
                    let child = Tracee::cloned(tracee.event_message()? as i32);
                    // Behind the call: a call on its behalf would go on with this one.
                    tracee.interrupt()?;
                    tracee.go_on()?;
                    stop_one(tracee)?;
                    return Ok(child);
                }
                Some(Stop::Ended) => return Err(Errno::SRCH),
                Some(Stop::Asked | Stop::WithAll) if is_asked => {
                    // It is stopped, and has not forked: it must not do so later.
                    self.say(tracee, Word::Cancelled)?;
                    return Err(Errno::TIMEDOUT);
                }
                Some(_) => tracee.go_on_alone()?,
                None => {
                    let found = self.read(self.memory)?;
                    if found.word == Some(Word::Failed) {
                        interrupt(tracee)?;
                        return Err(found.errno);
                    }
                    if began.elapsed() > patience && !is_asked {
                        tracee.interrupt()?;
                        is_asked = true;
                    }
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Waits until the child is a reader of the arenas, and stops it for good. It ends with this process. Also returns the
    /// mappings that it was born with.
    fn park(
        &self,
        child: &mut Tracee,
        plan: &Plan,
        left_out: &[ThreadState],
    ) -> cowslip_sys::Result<(Target, String)> {
        child.wait_long()?;
        child.take_over()?;
        let held = Target::open(child.thread())?;
        let born = held.read_file("maps")?;
        let memory = held.open_memory()?;
        child.go_on()?;
        self.wait_for(Word::Held, memory.as_fd(), PATIENCE, || {
            if let Ok(Some(_)) = child.poll() {
                let _ = child.go_on();
            }
        })?;
        interrupt(child)?;
        if child.has_ended() {
            return Err(Errno::SRCH);
        }
        // Threads that are in no copy have ended for those that wait for their end (`pthread_join`).
        for thread in left_out.iter().filter(|thread| thread.clear_tid != 0) {
            memfile::write_at(memory.as_fd(), &0_u32.to_ne_bytes(), thread.clear_tid)?;
        }
        self.entered.set_child(child, plan.sites)?;
        Ok((held, born))
    }
}

impl Held {
    /// The memory that the holder lacks, but for the library's. Fails if it has what no copy can have.
    fn lacking(&self, plan: &Plan) -> Result<Vec<VirtRange>> {
        if plan.is_of_memory_alone() {
            return Ok(Vec::new());
        }
        let pid = self.holder.pid();
        let links = descriptors::links(pid).map_err(failed)?;
        let maps = self.holder.held.read_file("maps").map_err(failed)?;
        let mut lacks = Vec::new();
        in_descriptors(&links, |_| true, &mut lacks);
        // Nothing of an arena may be shared any more. Memory of the program has been copied.
        let left = Library::default().own(&maps);
        let shared = shared::written(&maps, &left).filter(|mapping| mapping.name != ANONYMOUS);
        shared.for_each(|mapping| lack_shared(&mapping, &mut lacks));
        plan.refuse(&lacks)?;
        let own = self.library.own(&self.maps);
        let is_needed = |range: &VirtRange| {
            !own.has(*range) && !self.apart.iter().any(|apart| apart.covers(*range))
        };
        Ok(missing(&self.maps, &self.born).into_iter().filter(is_needed).collect())
    }
}

//! The instant.

mod by_library;
mod request;
mod services;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::hold_point;
use cowslip_sys::ptrace::{SignalInfo, Stop, Tracee};
use cowslip_sys::target::Target;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, BorrowedFd, Errno};

use crate::branch::{Caller, Places, memory_of};
use crate::descriptors::{self, DescriptorState};
use crate::inject::{Injection, Sites, let_wait, room, was_left_alone};
use crate::kept::{from_smaps, missing};
use crate::library::{Library, Own};
use crate::look::{OPERATION, Plan, failed, in_memory, is_filtered, unless_ended};
use crate::queues::{self, Waiting};
use crate::shared::{self, SharedMemory};
use crate::stop::{Threads, children};
use crate::thread::ThreadState;
use crate::timers::Timers;
pub(crate) use request::{PATIENCE_TO_FREEZE, Request, is_service};
pub(crate) use services::Service;

/// Attempts to find a thread on a stack with room.
pub(crate) const ATTEMPTS: u32 = 50;
/// Attempts to have all threads answer.
const ATTEMPTS_TO_ASK: u32 = 5;
pub(crate) const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(2);

/// A stopped child of a process, with its memory at one instant, and the state of all its threads then.
///
/// The program does not notice it: no signal tells of it, and `wait(2)` does not return for it. It ends when this is
/// dropped, or with the thread that made this.
#[derive(Debug)]
pub struct Holder {
    target: Arc<Target>,
    sites: Sites,
    held: Target,
    /// `None` once it is [lent](Holder::lend).
    child: Option<Tracee>,
    threads: Vec<ThreadState>,
    descriptors: Vec<DescriptorState>,
    /// The sizes of files in private folders, by descriptor.
    sizes: HashMap<i32, u64>,
    queues: Waiting,
    kept: Vec<VirtRange>,
    /// The program's memory that core files lack, by the look.
    secrets: Vec<VirtRange>,
    shared: Vec<SharedMemory>,
    timers: Timers,
    /// The signals that wait for any of its threads.
    pending: Vec<SignalInfo>,
    library: Option<Library>,
    /// The library's threads; `None` unless the program is to be [marked](Plan::mark).
    services: Option<Vec<Service>>,
    /// Found at the first copy.
    openssl: OnceCell<Places>,
    /// The program's threads, if it [stays stopped](Plan::stay_stopped).
    stopped: Option<Threads>,
    pause: Duration,
}

impl Plan {
    /// Holds the process: stops its threads, takes their state, has one of them fork, and lets them go on.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the plan says that a copy is [not possible](crate::Fate::Refused);
    /// [`ErrorKind::Denied`] without the right to trace it; [`ErrorKind::Vanished`] once it has ended; what `fork(2)`
    /// answered. The program goes on in any case.
    pub fn hold(mut self) -> Result<Holder> {
        self.refuse(self.lacks())?;
        loop {
            let (holder, lacking) =
                self.hold_once().map_err(|error| unless_ended(&self.target, error))?;
            match lacking.first() {
                None => return Ok(holder),
                // It has come since the look.
                Some(_) if !self.keeps => self.keeps = true,
                Some(range) => {
                    return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                        .on(*range)
                        .because("the kernel gives it to no child"));
                }
            }
        }
    }

    /// The request of the library.
    fn request(&self) -> hold_point::Request {
        if self.is_mark { hold_point::Request::Mark } else { hold_point::Request::Hold }
    }

    /// Holds the process, and finds out which parts of its memory the holder lacks.
    fn hold_once(&self) -> Result<(Holder, Vec<VirtRange>)> {
        if let Some(library) = &self.library {
            if self.stays_stopped {
                return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                    .because("it is under cowslip run, and cannot stay stopped"));
            }
            return by_library::hold_once(self, library);
        }
        let Self { target, sites, .. } = self;
        let memory = target.open_memory().map_err(failed)?;
        let mut threads = Threads::seize(target.pid()).map_err(failed)?;
        let (mut answers, timers) = threads.ask(target, memory.as_fd(), *sites).map_err(failed)?;
        for attempt in 0..ATTEMPTS {
            let began = Instant::now();
            threads.stop().map_err(failed)?;
            let maps = target.read_file("maps").map_err(failed)?;
            let read = |tracee: &Tracee| {
                let known = answers.get(&tracee.thread());
                ThreadState::read(tracee, target.pid(), memory.as_fd(), known)
            };
            let states = threads.all.iter().map(read).collect::<Result<_, _>>().map_err(failed)?;
            let stopped =
                Stopped::take(self, maps, &Own::default(), memory.as_fd(), &threads, states)?;
            if !stopped.is_known() && attempt < ATTEMPTS_TO_ASK {
                threads.run_for(BETWEEN_ATTEMPTS);
                let (more, _) = threads.ask(target, memory.as_fd(), *sites).map_err(failed)?;
                answers.extend(more);
                continue;
            }
            let room = with_room(&mut threads, &stopped.maps, memory.as_fd(), |_| true);
            let Some((caller, room)) = room else {
                threads.run_for(BETWEEN_ATTEMPTS);
                continue;
            };
            let injection = Injection::prepare(caller, room, memory.as_fd(), *sites);
            let injection = injection.map_err(failed)?;
            let mut child = injection.fork(&stopped.kept).map_err(failed)?;
            let files = Files::read(self);
            if !self.stays_stopped {
                threads.go_on();
            }
            let pause = began.elapsed();
            child.wait().map_err(failed)?;
            let held = Target::open(child.thread()).map_err(failed)?;
            let maps = stopped.maps.clone();
            let mut holder = Holder::new(self, stopped, files, (child, held), pause)?;
            // Its end is a call of the program's.
            holder.stopped = self.stays_stopped.then_some(threads);
            holder.timers = timers;
            holder.own_shared()?;
            let lacking = missing(&maps, &holder.held.read_file("maps").map_err(failed)?);
            return Ok((holder, lacking));
        }
        Err(Error::new(ErrorKind::Busy, OPERATION)
            .because("none of its threads had room for a call")
            .advise("try again when it is idle"))
    }
}

/// A program with all of its threads stopped.
struct Stopped {
    maps: String,
    threads: Vec<ThreadState>,
    kept: Vec<VirtRange>,
    shared: Vec<SharedMemory>,
    pending: Vec<SignalInfo>,
}

impl Stopped {
    /// Takes its state, but for that of its files. Fails if there can be no copy of it.
    fn take(
        plan: &Plan,
        maps: String,
        own: &Own,
        memory: BorrowedFd<'_>,
        threads: &Threads,
        states: Vec<ThreadState>,
    ) -> Result<Self> {
        // Some may have come since the look.
        let mut lacks = Vec::new();
        in_memory(&plan.target, &maps, own, &mut lacks).map_err(failed)?;
        plan.refuse(&lacks)?;
        // It takes a walk of all page tables, and must be of this instant: another mapping may be there by then.
        let smaps = match plan.keeps {
            true => plan.target.read_file("smaps").map_err(failed)?,
            false => String::new(),
        };
        let kept = from_smaps(&smaps, own);
        let main = threads.all.first().ok_or(Errno::SRCH);
        let pending = main.and_then(|main| main.pending_signals(true)).map_err(failed)?;
        let shared = match plan.is_of_memory_alone() {
            true => Vec::new(),
            false => shared::read(memory, &maps, own).map_err(failed)?,
        };
        Ok(Self { maps, threads: states, kept, shared, pending })
    }

    /// False if some threads are younger than the questions, or had no room then.
    fn is_known(&self) -> bool {
        self.threads.iter().all(|state| state.alternate_stack.is_some())
    }
}

/// The state of its files.
struct Files {
    descriptors: Result<Vec<DescriptorState>, Errno>,
    sizes: Result<HashMap<i32, u64>, Errno>,
    queues: Result<Waiting, Errno>,
}

impl Files {
    /// Reads it, once the program has been forked: an error must not keep it stopped.
    fn read(plan: &Plan) -> Self {
        Self {
            descriptors: descriptors::states(plan.target.pid()),
            sizes: plan.private.sizes(plan.target.pid()),
            queues: queues::waiting(&plan.target, &plan.queues),
        }
    }
}

impl Holder {
    fn new(
        plan: &Plan,
        stopped: Stopped,
        files: Files,
        (child, held): (Tracee, Target),
        pause: Duration,
    ) -> Result<Self> {
        Ok(Self {
            target: Arc::clone(&plan.target),
            sites: plan.sites,
            held,
            child: Some(child),
            threads: stopped.threads,
            descriptors: files.descriptors.map_err(failed)?,
            sizes: files.sizes.map_err(failed)?,
            queues: files.queues.map_err(failed)?,
            kept: stopped.kept,
            secrets: plan.secrets.clone(),
            shared: stopped.shared,
            timers: Timers::default(),
            pending: stopped.pending,
            library: plan.library.clone(),
            services: None,
            openssl: OnceCell::new(),
            stopped: None,
            pause,
        })
    }

    /// The process that has the memory.
    pub fn pid(&self) -> i32 {
        self.held.pid()
    }

    /// The program that it was forked from.
    pub fn program(&self) -> i32 {
        self.target.pid()
    }

    /// Lets another process seize the holder (`ptrace(2)`). It waits in a call meanwhile, with all signals blocked, and
    /// ends by itself if that takes longer than a minute, or once it is let go.
    ///
    /// # Errors
    /// [`ErrorKind::Vanished`] if it has been killed.
    pub fn lend(&mut self) -> Result<()> {
        let Some(child) = &self.child else { return Ok(()) };
        let_wait(child, self.sites).map_err(failed)?;
        self.child = None;
        Ok(())
    }

    /// Ends the program (`SIGKILL`), and the holder.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it may not be ended. One that has ended already is none.
    pub fn end_program(self) -> Result<()> {
        match self.target.end() {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// The threads, the main thread first.
    pub fn threads(&self) -> &[ThreadState] {
        &self.threads
    }

    /// The state of each descriptor at the instant.
    pub fn descriptors(&self) -> &[DescriptorState] {
        &self.descriptors
    }

    /// The sizes of files in folders that the plan was told of, by descriptor.
    pub(crate) fn sizes(&self) -> &HashMap<i32, u64> {
        &self.sizes
    }

    /// The memory that the program keeps from its children, and that the holder has nevertheless.
    pub fn kept(&self) -> &[VirtRange] {
        &self.kept
    }

    /// The timers, a moment before the instant. The holder has none.
    pub fn timers(&self) -> &Timers {
        &self.timers
    }

    /// The time for which the program was stopped.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// The holder, to make calls; `None` while it is lent.
    pub(crate) fn stopped(&mut self) -> Option<&mut Tracee> {
        self.child.as_mut()
    }

    /// The program, and the process that has its memory.
    pub(crate) fn both(&self) -> (&Target, &Target) {
        (&self.target, &self.held)
    }

    /// Bytes that the program had sent to itself.
    pub(crate) fn queues(&self) -> &Waiting {
        &self.queues
    }

    /// The library of a program under `cowslip run`.
    pub(crate) fn library(&self) -> Option<&Library> {
        self.library.as_ref()
    }

    /// The library's threads at the instant of a mark; `None` if its views are not kept.
    pub(crate) fn services(&self) -> Option<&[Service]> {
        self.services.as_deref()
    }

    pub(crate) fn sites(&self) -> Sites {
        self.sites
    }

    /// The places at which OpenSSL asks for the number of its process.
    pub(crate) fn openssl(&self) -> Result<&Places, Errno> {
        if let Some(known) = self.openssl.get() {
            return Ok(known);
        }
        let (maps, memory) = (self.held.read_file("maps")?, self.held.open_file("mem")?);
        Ok(self.openssl.get_or_init(|| Places::find(&self.held, &maps, memory.as_fd())))
    }

    /// Gives it shared memory of its own, with the content of the instant.
    fn own_shared(&mut self) -> Result<()> {
        if let (Some(child), false) = (&mut self.child, self.shared.is_empty()) {
            child.take_over().map_err(failed)?;
            let (_, memory) = memory_of(child).map_err(failed)?;
            let mut caller = Caller::new(child, &memory, self.sites).map_err(failed)?;
            shared::renew(&mut caller, memory.as_fd(), &self.shared).map_err(failed)?;
        }
        Ok(())
    }

    /// The signals that wait for any of its threads.
    pub(crate) fn pending(&self) -> &[SignalInfo] {
        &self.pending
    }

    /// Memory that core files lack, in the program.
    pub(crate) fn secrets(&self) -> &[VirtRange] {
        &self.secrets
    }

    /// Shared memory without a name, at the instant.
    pub(crate) fn shared(&self) -> &[SharedMemory] {
        &self.shared
    }

    /// Ends the holder, and has the program, its parent, forget it.
    fn end(&mut self) -> Result<(), Errno> {
        self.held.end()?;
        match &mut self.child {
            // Until its tracer has seen its end, its parent cannot.
            Some(child) => while child.wait_long()? != Stop::Ended {},
            None => wait_ended(&self.held)?,
        }
        let is_stopped = self.stopped.is_some();
        let mut threads = match self.stopped.take() {
            Some(threads) => threads,
            None => Threads::seize(self.target.pid())?,
        };
        for attempt in 0..ATTEMPTS {
            if attempt > 0 || !is_stopped {
                threads.stop()?;
            }
            if is_filtered(&self.target.read_file("status")?) {
                // It would end for a call that its filter does not know. Its own next wait finds the child.
                return Err(Errno::PERM);
            }
            let (maps, memory) = (self.target.read_file("maps")?, self.target.open_memory()?);
            if let Some((caller, room)) = with_room(&mut threads, &maps, memory.as_fd(), |_| true) {
                let mut ended = left_alone(self.target.pid());
                ended.push(self.pid());
                return Injection::prepare(caller, room, memory.as_fd(), self.sites)?.reap(&ended);
            }
            threads.run_for(BETWEEN_ATTEMPTS);
        }
        Err(Errno::AGAIN)
    }
}

/// Children that stayed where an earlier process like this one was killed.
fn left_alone(pid: i32) -> Vec<i32> {
    let is_stale = |child: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
        stat.is_ok_and(|stat| was_left_alone(&stat))
    };
    children(pid).into_iter().filter(is_stale).collect()
}

/// Waits for the end of a process that was killed.
fn wait_ended(killed: &Target) -> Result<(), Errno> {
    const MOST_NAPS: u32 = 1000;
    for _ in 0..MOST_NAPS {
        if killed.has_ended()? {
            return Ok(());
        }
        std::thread::sleep(BETWEEN_ATTEMPTS);
    }
    Err(Errno::TIMEDOUT)
}

/// A thread that can make a call, among those that `may` make it, all being stopped; and its room.
pub(crate) fn with_room<'a>(
    threads: &'a mut Threads,
    maps: &str,
    memory: BorrowedFd<'_>,
    may: impl Fn(&Tracee) -> bool,
) -> Option<(&'a mut Tracee, u64)> {
    let main_rsp = threads.all.first()?.registers().ok()?.rsp;
    let rooms = |main_rsp| {
        let mut all = threads.all.iter().enumerate().filter(|(_, tracee)| may(tracee));
        all.find_map(|(i, tracee)| Some((i, room(tracee, main_rsp, maps, memory)?)))
    };
    // Each on its own stack, if one can.
    let (i, room) = rooms(None).or_else(|| rooms(Some(main_rsp)))?;
    Some((&mut threads.all[i], room))
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Where the program cannot be asked, the child's number stays taken until the program ends.
        let _ = self.end();
    }
}

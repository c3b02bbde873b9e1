//! Copies of a held process that run, side by side with it.
//!
//! ```text
//!  program ──fork──▶ holder ──clone(VM, NEWPID)──▶ first process of a PID namespace ──clone3(set_tid)──▶ copy
//!  goes on           stopped, one instant           stopped, shares the holder's memory                   its threads,
//!                    ends when all copies are made  ends with this process, and the copy with it          files, registers
//! ```
//! A copy has the program's thread numbers, in a PID namespace of its own. The kernel shares its memory with the holder
//! until one of them writes. Open files are made [anew](files), threads with the state of the [instant](threads), all by
//! calls that the copy makes before it runs.
//!
//! Not as in the program: children, locks, and orphans, which stay zombies until the copy ends.

mod caller;
mod chain;
mod files;
mod namespaces;
mod openssl;
mod private;
mod sockets;
mod streams;
mod threads;

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::ptrace::{Stop, Tracee};
use cowslip_sys::target::Target;
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd};
use libc::{
    MADV_DONTFORK, SYS_close, SYS_close_range, SYS_fchdir, SYS_madvise, SYS_setsid, SYS_wait4,
};

use crate::hold::Holder;
use crate::inject::Sites;
use crate::{shared, timers};
pub(crate) use caller::{Caller, memory_of};
pub(crate) use chain::Chains;
pub(crate) use openssl::Places;
pub use private::PrivateFolders;
pub(crate) use sockets::close_outside;
pub(crate) use threads::{CLONE_ARGUMENTS_BYTES, arguments_to_start, equip, schedule, set_state};

const OPERATION: &str = "branch a process";

/// How a copy differs from its program.
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions<'a> {
    /// Its standard streams, where the program has such. A program that waits for its input in a set (`epoll(7)`) has a pipe in
    /// the place of a file, which a thread of this process reads.
    pub streams: [BorrowedFd<'a>; 3],
    /// Its working directory, if that is not the program's.
    pub folder: Option<BorrowedFd<'a>>,
    /// Folders of which it has its own.
    pub private: &'a PrivateFolders,
    /// It has a network of its own, with the program's ports.
    pub has_own_network: bool,
    /// The number of a pipe that the program reads, and the bytes for the copy, which then reads its end.
    pub job: Option<(i32, &'a [u8])>,
}

/// A running copy. It ends when this is dropped, or with the thread that made this.
#[derive(Debug)]
pub struct Copy {
    process: Target,
    /// The process' number in its namespace.
    number: i32,
    first: Tracee,
    memory: OwnedFd,
    sites: Sites,
}

impl AsFd for Copy {
    /// Readable once the copy has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

impl Holder {
    /// Starts a copy.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] without the right to make namespaces; [`ErrorKind::Unsupported`] if a thread could not be asked for
    /// its state; what a call on the copy's behalf answered. There is no copy then.
    pub fn branch(&mut self, options: &CopyOptions<'_>) -> Result<Copy> {
        if self.threads().iter().any(|thread| thread.alternate_stack.is_none()) {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .because("a thread could not be asked for its stack"));
        }
        let sites = self.sites();
        let Some(child) = self.stopped() else {
            return Err(Error::new(ErrorKind::Busy, OPERATION).because("the holder is lent"));
        };
        child.take_over().during(OPERATION)?;
        let (held, held_memory) = memory_of(child).during(OPERATION)?;
        let users = namespaces::Users::needed_by(&held).during("find out the program's user")?;
        let mut holder = Caller::new(child, &held_memory, sites).during(OPERATION)?;
        let first = namespaces::start_first(&mut holder, users)?;
        let (process, memory) = memory_of(&first).during(OPERATION)?;
        let main = self.threads()[0].id;
        let mut made = Copy { process, number: main, first, memory, sites };
        let mut caller = Caller::new(&mut made.first, &made.memory, sites).during(OPERATION)?;
        // Signals to the program's group or session are not for copies.
        caller.call(SYS_setsid, &[]).during(OPERATION)?;
        let copy = threads::start(&mut caller, 0, main, 0).during("fork in a PID namespace")?;
        let mut copy = Unfinished { tasks: vec![copy] };
        // Connections are the program's to close.
        caller.call(SYS_close_range, &[0, u64::from(u32::MAX), 0]).during(OPERATION)?;
        let pid = copy.tasks[0].thread();
        let (process, copy_memory) = memory_of(&copy.tasks[0]).during(OPERATION)?;
        made.process = process;
        let mut caller = Caller::new(&mut copy.tasks[0], &copy_memory, sites).during(OPERATION)?;
        let [input, output, errors] = options.streams;
        let is_watched = files::is_watched(self.descriptors(), 0);
        let fed = is_watched.then(|| streams::watchable(input)).transpose()?.flatten();
        let input = fed.as_ref().map_or(input, AsFd::as_fd);
        let passed: Vec<_> = [input, output, errors].into_iter().chain(options.folder).collect();
        let numbers = streams::pass(&mut caller, pid, &passed)?;
        if let Some(folder) = numbers.get(3) {
            caller.call(SYS_fchdir, &[*folder]).during("change a copy's folder")?;
            caller.call(SYS_close, &[*folder]).during(OPERATION)?;
        }
        caller.call(SYS_setsid, &[]).during(OPERATION)?;
        if options.has_own_network {
            namespaces::own_network(&mut caller)?;
        }
        let around = files::Surroundings {
            process: &made.process,
            queues: self.queues(),
            streams: [numbers[0], numbers[1], numbers[2]],
            program: self.program(),
            has_own_network: options.has_own_network,
            job: options.job,
        };
        let files = files::renew(&mut caller, &held, self.descriptors(), &around);
        files.map_err(|errno| {
            let error = Error::from_errno("open a copy's files", errno);
            match errno {
                Errno::NOENT => error.advise("if the program has sockets: modprobe unix_diag"),
                _ => error,
            }
        })?;
        let renewed = shared::renew(&mut caller, copy_memory.as_fd(), self.shared());
        renewed.during("copy shared memory")?;
        let places = self.openssl();
        let redirected =
            places.and_then(|places| places.redirect(&mut caller, copy_memory.as_fd()));
        redirected.during("give a copy random numbers of its own")?;
        for range in self.kept() {
            let (start, len) = (range.start as u64, range.len as u64);
            let advice = MADV_DONTFORK as u64;
            caller.call(SYS_madvise, &[start, len, advice]).during(OPERATION)?;
        }
        let mounted = namespaces::own_mounts(&mut caller);
        if !options.private.is_empty() {
            mounted.during("give a copy mounts of its own")?;
            options.private.mount(&mut caller, users.is_some())?;
            let files = files::open_files(&held, self.descriptors()).during(OPERATION)?;
            private::reopen(options, &mut caller, &held, (&files, self.sizes()))?;
        }
        // The program's `/proc` does in most places.
        let _ = mounted.and_then(|()| namespaces::own_proc(&mut caller));
        let threads = self.start_threads(&mut copy, &copy_memory, users.is_some());
        threads.during("start a copy's threads")?;
        copy.go_on();
        Ok(made)
    }

    /// Starts the threads beside the main one, and gives all of them their state.
    fn start_threads(
        &self,
        copy: &mut Unfinished,
        memory: &OwnedFd,
        has_new_capabilities: bool,
    ) -> cowslip_sys::Result<()> {
        let (sites, states) = (self.sites(), self.threads());
        let main = states[0].id;
        let tasks = &mut copy.tasks;
        let mut caller = Caller::new(&mut tasks[0], memory, sites)?;
        let now = caller.registers();
        let room = (states.len() + 1) * BYTES_PER_THREAD;
        let mut chains = Chains::new(&mut caller, sites, main, room)?;
        let starts: Vec<_> =
            states[1..].iter().map(|state| threads::call_to_start(&mut chains, state)).collect();
        let starts = chains.add(main, &starts);
        chains.write(memory)?;
        chain::begin(&mut tasks[0], &starts)?;
        let started = chain::finish(&mut tasks[0]);
        tasks.extend(started?);
        if let Some(missing) = states.get(tasks.len()) {
            tasks[0].set_registers(&now)?;
            let mut caller = Caller::new(&mut tasks[0], memory, sites)?;
            // The error says why.
            let thread = threads::start_thread(&mut caller, missing)?;
            tasks.push(thread);
            return Err(Errno::AGAIN);
        }
        for task in &mut tasks[1..] {
            while !task.is_stopped() {
                if task.wait_long()? == Stop::Ended {
                    return Err(Errno::SRCH);
                }
            }
        }
        let all: Vec<_> = states.iter().collect();
        threads::equip(&mut chains, memory, tasks, &all)?;
        for task in tasks.iter_mut() {
            // Back to the scratch memory of its calls.
            task.set_registers(&now)?;
        }
        chains.end(&mut Caller::new(&mut tasks[0], memory, sites)?)?;
        for (tracee, state) in tasks.iter_mut().zip(states) {
            let mut caller = Caller::new(tracee, memory, sites)?;
            if state.id == main {
                timers::start(&mut caller, self.timers())?;
                threads::queue(&mut caller, self.pending(), main, None)?;
            }
            threads::queue(&mut caller, &state.pending, main, Some(state.id))?;
            if has_new_capabilities {
                namespaces::drop_capabilities(&mut caller)?;
            }
        }
        tasks.iter().zip(states).try_for_each(|(task, state)| {
            threads::schedule(task, state);
            threads::set_state(task, state)
        })
    }
}

/// Room in a copy for the calls of a thread: a dozen frames, and arguments.
pub(crate) const BYTES_PER_THREAD: usize = 4096;

/// A copy that does not run yet, the main thread first. Dropped, it ends: a traced task that has ended must be waited for by
/// its tracer before its parent can, and the kernel ends a namespace only then.
struct Unfinished {
    tasks: Vec<Tracee>,
}

impl Unfinished {
    /// Lets its threads run, the main thread last: it may end the others, or be another program soon.
    fn go_on(mut self) {
        while let Some(task) = self.tasks.pop() {
            drop(task);
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(main) = self.tasks.first() else { return };
        let _ = Target::open(main.thread()).and_then(|copy| copy.end());
        while let Some(mut task) = self.tasks.pop() {
            while !matches!(task.wait(), Ok(Stop::Ended) | Err(_)) {}
        }
    }
}

impl Copy {
    /// The process, by its number here.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Sends it a signal that has a name.
    ///
    /// # Errors
    /// [`ErrorKind::Vanished`] once it has ended.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.process.signal(signal).during("send a signal to a copy")
    }

    /// The status with which it ended, as of `wait(2)`: once [`as_fd`](AsFd::as_fd) is readable, and once only.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if it was called before.
    pub fn status(&mut self) -> Result<i32> {
        const ALL_KINDS: u64 = libc::__WALL as u64;
        let operation = "wait for a copy";
        let mut first = Caller::new(&mut self.first, &self.memory, self.sites).during(operation)?;
        let place = first.place(0);
        loop {
            let ended = first.call(SYS_wait4, &[!0, place, ALL_KINDS, 0]).during(operation)?;
            // Orphans of the copy are the first process' children.
            if ended == self.number as u64 {
                return first.get(0).map(i32::from_ne_bytes).during(operation);
            }
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // All of its namespace ends with it.
        if Target::open(self.first.thread()).and_then(|first| first.end()).is_ok() {
            while !matches!(self.first.wait(), Ok(Stop::Ended) | Err(_)) {}
        }
    }
}

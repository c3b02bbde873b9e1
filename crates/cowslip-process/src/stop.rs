//! All threads of a process: seized, stopped together, and let go.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cowslip_sys::ptrace::{Stop, Tracee};
use cowslip_sys::target::Target;
use cowslip_sys::{BorrowedFd, Errno, Result};

use crate::inject::{Answers, Injection, Sites, room};
use crate::timers::{PosixTimer, Timers};

/// Between looks at threads that run.
const NAP: Duration = Duration::from_micros(200);

/// The threads of a process. They go on when this is dropped.
#[derive(Debug)]
pub(crate) struct Threads {
    pid: i32,
    pub(crate) all: Vec<Tracee>,
}

impl Threads {
    /// Seizes every thread, while they run and start others.
    pub(crate) fn seize(pid: i32) -> Result<Self> {
        let mut threads = Self { pid, all: Vec::new() };
        while threads.seize_new()? > 0 {}
        Ok(threads)
    }

    fn seize_new(&mut self) -> Result<usize> {
        let before = self.all.len();
        let mut threads = ids(self.pid, "task")?;
        // The main thread first: numbers begin anew, so that others may be less.
        threads.sort_by_key(|thread| *thread != self.pid);
        for thread in threads {
            if self.all.iter().any(|tracee| tracee.thread() == thread) {
                continue;
            }
            match Tracee::seize(thread) {
                Ok(tracee) => self.all.push(tracee),
                // It has ended since: until it is gone the kernel refuses it like another's.
                Err(Errno::SRCH) => {}
                Err(Errno::PERM) if has_ended(self.pid, thread) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(self.all.len() - before)
    }

    /// Stops all of them, and those that they start meanwhile.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let mut stopped = 0;
        loop {
            for tracee in &self.all[stopped..] {
                // One that has ended says so when it is waited for.
                let _ = tracee.interrupt();
            }
            // Of a process that ends, the main thread, which is the first, ends after the others.
            for tracee in self.all[stopped..].iter_mut().rev() {
                stop_one(tracee)?;
            }
            stopped = self.all.len();
            if self.seize_new()? == 0 {
                break;
            }
        }
        self.all.retain(|tracee| !tracee.has_ended());
        // The main thread can end before the others: then no file of the process in `/proc` shows its memory.
        let has_main = self.all.iter().any(|tracee| tracee.thread() == self.pid);
        if has_main { Ok(()) } else { Err(Errno::SRCH) }
    }

    /// Stops one after the other, while the rest run, and asks those that can make a call. Returns their answers, by the number
    /// of the thread, and the timers of the process.
    pub(crate) fn ask(
        &mut self,
        target: &Target,
        memory: BorrowedFd<'_>,
        sites: Sites,
    ) -> Result<(HashMap<i32, Answers>, Timers)> {
        let (mut answers, mut timers) = (HashMap::new(), Timers::default());
        let mut maps = target.read_file("maps")?;
        for i in 0..self.all.len() {
            // Signals stop the others, which are traced too.
            self.pass_on();
            let (main, others) = self.all.split_first_mut().ok_or(Errno::SRCH)?;
            let (tracee, mut main): (_, Option<&mut Tracee>) = match i {
                0 => (main, None),
                _ => (&mut others[i - 1], Some(main)),
            };
            interrupt(tracee)?;
            if tracee.has_ended() {
                continue;
            }
            let mut place = room(tracee, None, &maps, memory);
            if place.is_none() {
                // Its stack may be newer than that.
                maps = target.read_file("maps")?;
                if let Some(main) = &mut main {
                    interrupt(main)?;
                }
                let main_rsp = main.as_deref().unwrap_or(tracee).registers()?.rsp;
                place = room(tracee, Some(main_rsp), &maps, memory);
            }
            if let Some(place) = place {
                let mut injection = Injection::prepare(tracee, place, memory, sites)?;
                if answers.is_empty() {
                    let list = target.read_file("timers").unwrap_or_default();
                    // Some may have come since the look.
                    let list = PosixTimer::parse_all(&list).ok_or(Errno::OPNOTSUPP)?;
                    timers = injection.timers(list)?;
                }
                let answer = injection.ask()?;
                answers.insert(tracee.thread(), answer);
            }
            tracee.go_on()?;
            if let Some(main) = main.filter(|main| main.is_stopped()) {
                main.go_on()?;
            }
        }
        Ok((answers, timers))
    }

    /// Lets all of them go on.
    pub(crate) fn go_on(&mut self) {
        for tracee in self.all.iter_mut().filter(|tracee| tracee.is_stopped()) {
            // An error means that it has been killed.
            let _ = tracee.go_on();
        }
    }

    /// Lets the threads run for a while, and passes signals on.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        self.go_on();
        while Instant::now() < end {
            std::thread::sleep(NAP);
            self.pass_on();
        }
    }

    /// The thread of this number.
    pub(crate) fn find(&mut self, thread: i32) -> Option<&mut Tracee> {
        self.all.iter_mut().find(|tracee| tracee.thread() == thread)
    }

    /// Lets threads go on that a signal has stopped.
    pub(crate) fn pass_on(&mut self) {
        self.pass_on_but(|_| false);
    }

    /// Lets threads that run, but one, go on even if a signal stops the whole program.
    pub(crate) fn run_on_but(&mut self, thread: i32) {
        let runs = |tracee: &&mut Tracee| tracee.thread() != thread && !tracee.is_stopped();
        for tracee in self.all.iter_mut().filter(runs) {
            if let Ok(Some(_)) = tracee.poll() {
                let _ = tracee.go_on_alone();
            }
        }
    }

    /// The same, but some run on if a signal stops the whole program: these stop once they are let go of.
    pub(crate) fn pass_on_but(&mut self, runs_on: impl Fn(&Tracee) -> bool) {
        for tracee in &mut self.all {
            if let Ok(Some(_)) = tracee.poll() {
                let _ = if runs_on(tracee) { tracee.go_on_alone() } else { tracee.go_on() };
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Stopped ones first: they wait for this, while another may not stop for long.
        self.all.sort_by_key(Tracee::is_stopped);
        while let Some(tracee) = self.all.pop() {
            drop(tracee);
        }
    }
}

/// True for a thread that has ended, by its state in `/proc` (`proc_pid_stat(5)`).
fn has_ended(pid: i32, thread: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")) else {
        return true;
    };
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X'))
}

/// Stops a thread, or finds that it has ended.
pub(crate) fn interrupt(tracee: &mut Tracee) -> Result<()> {
    let _ = tracee.interrupt();
    stop_one(tracee)
}

/// Waits for the stop that a thread was asked for. Signals that come first are passed on.
pub(crate) fn stop_one(tracee: &mut Tracee) -> Result<()> {
    loop {
        match tracee.wait() {
            Ok(Stop::Asked | Stop::WithAll | Stop::Ended) | Err(Errno::CHILD) => return Ok(()),
            Ok(_) => tracee.go_on()?,
            Err(errno) => return Err(errno),
        }
    }
}

/// The numbers that are the names in a folder of a process in `/proc`, in ascending order.
pub(crate) fn ids(pid: i32, folder: &str) -> Result<Vec<i32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/{folder}")).map_err(|error| {
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT) | None => Errno::SRCH,
            Some(errno) => errno,
        }
    })?;
    let mut ids: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// The children of all of its threads.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let threads = ids(pid, "task").unwrap_or_default();
    let texts = threads.into_iter().filter_map(|thread| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).ok()
    });
    let numbers = |text: String| -> Vec<i32> {
        text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    texts.flat_map(numbers).collect()
}

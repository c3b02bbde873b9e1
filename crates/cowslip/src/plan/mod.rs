//! Decisions about background work: *when*, beside the *what* of [`crate::memory::chunk_map`].
//!
//! ```text
//!   thaw::observe ──▶ Facts ──▶ next ──▶ Task ──▶ thaw::perform ──▶ what it took ──▶ Plan
//!                      asked      one order           the only system
//!                      for        of importance       calls
//! ```
//! Nothing here makes a system call, reads a clock or takes a lock. A wrong decision costs time, never content:
//! a task that the table of states does not allow is refused where it is performed.

mod clean;
mod consolidate;
pub(crate) mod density;
pub(crate) mod facts;
mod limits;
mod moving;
mod next;
pub(crate) mod pace;
mod residency;
pub(crate) mod rest;
pub(crate) mod settings;
#[cfg(test)]
mod simulate;
pub(crate) mod task;
mod thaw;

use cowslip_sys::Errno;

use task::{Task, Work};

pub(crate) use moving::is_movable;
pub(crate) use next::next;

/// The progress of all background work of an arena.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) quiet: Quiet,
    pub(crate) thaw: thaw::Thaw,
    pub(crate) moving: moving::Moving,
    pub(crate) clean: clean::Clean,
    pub(crate) consolidate: consolidate::Consolidate,
    pub(crate) density: density::Tending,
    pub(crate) residency: residency::Rounds,
    /// The next attempt to reuse chunks that were given back while others read them.
    pub(crate) reclaim: pace::Turn,
    /// Time for which writers waited since the service thread's last rest.
    pub(crate) felt_ns: u64,
    /// Time that thaws took since then.
    pub(crate) thawed_ns: u64,
    /// Threads that wait for the service thread's work.
    pub(crate) awaited: u32,
}

impl Plan {
    /// Notes that memory was frozen, or frozen memory put back.
    pub(crate) fn freeze(&mut self) {
        self.moving.forget();
        self.thaw.freeze();
    }

    /// In a forked child: forgets what concerns the parent's readers.
    pub(crate) fn begin_child(&mut self) {
        self.thaw = thaw::Thaw::default();
        self.clean = clean::Clean::default();
        self.moving.begin_child();
        self.reclaim.hurry();
        self.density.begin_child();
        (self.felt_ns, self.thawed_ns, self.awaited) = (0, 0, 0);
    }

    /// Notes that all memory is live.
    pub(crate) fn finish(&mut self) {
        self.thaw.finish();
        self.density.hurry();
    }

    /// Notes the outcome of a task: `Ok(true)` if it did something.
    pub(crate) fn note(
        &mut self,
        task: &Task,
        outcome: Result<bool, Errno>,
        took_ns: u64,
        now_ns: u64,
    ) {
        match task {
            Task::Consolidate { .. } => return self.consolidate.worked(outcome, took_ns, now_ns),
            Task::Split(_) => return self.density.split(outcome == Ok(true), took_ns),
            Task::Collapse(_) => return self.density.collapsed(outcome, took_ns, now_ns),
            _ => {}
        }
        let Some(work) = task.work() else { return };
        if work == Work::Thaw {
            self.thaw.add_work(took_ns);
            self.thawed_ns += took_ns;
        }
        match (work, outcome) {
            (Work::Thaw, Ok(_)) => self.thaw.look_soon(),
            (Work::Thaw, Err(_)) => self.thaw.fail(now_ns),
            (Work::Move, Ok(_)) => self.moving.moved(now_ns),
            (Work::Move, Err(_)) => match task {
                Task::Complete(chunk) | Task::Move(chunk, _) => self.moving.fail(*chunk, now_ns),
                _ => self.moving.fail_look(now_ns),
            },
            (Work::Clean, Ok(_)) => {}
            (Work::Clean, Err(_)) => _ = self.clean.end(now_ns),
        }
    }
}

/// The moment after a fork, in which nothing is done in the background.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    until_ns: u64,
    /// The last fork came while the one before it was still being finished.
    pub(crate) forks_often: bool,
}

impl Quiet {
    /// Begins after a fork.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.forks_often = self.lasts(now_ns);
        self.until_ns = now_ns + settings::thaw::QUIET_AFTER_FORK_NS;
    }

    pub(crate) fn lasts(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// Lasts until that time.
    #[cfg(test)]
    pub(crate) fn set_until(&mut self, until_ns: u64) {
        self.until_ns = until_ns;
    }
}

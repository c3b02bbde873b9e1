//! Background checkpoints, and the durable part of the store.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cowslip::image::Restored;

use crate::Result;
use crate::images::{Images, Mark};
use crate::table::Table;

/// Long enough for a thaw on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The state of the checkpoints.
#[derive(Clone, Default)]
pub(crate) struct State {
    /// The number of requested checkpoints, and of those that a finished one has answered.
    asked: u64,
    answered: u64,
    pub(crate) is_saving: bool,
    /// The mark of the newest image.
    pub(crate) durable: Option<Mark>,
    pub(crate) durable_unix_s: u64,
    /// The reason why the last one failed, if it did.
    pub(crate) fault: Option<String>,
}

/// Takes checkpoints, from a thread of its own, and lets others wait for them.
///
/// A thread that holds the lock of the table may take this one's, but not the other way round.
pub(crate) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
    /// From the beginning of one checkpoint to that of the next; zero: only on request.
    every: Duration,
}

impl Checkpoints {
    pub(crate) fn new(every: Duration, durable: Option<Mark>) -> Self {
        let durable_unix_s = unix_s();
        let state = State { durable, durable_unix_s, ..State::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), every }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic ends the process")
    }

    /// Requests a checkpoint that begins from now on; [`Self::wait`] waits for it.
    pub(crate) fn ask(&self) -> u64 {
        let mut state = self.state();
        state.asked += 1;
        self.changed.notify_all();
        state.asked
    }

    /// Waits for a requested checkpoint; returns the reason if it failed.
    pub(crate) fn wait(&self, ticket: u64) -> Option<String> {
        let unanswered = |state: &mut State| state.answered < ticket;
        let state = self.changed.wait_while(self.state(), unanswered);
        state.expect("a panic ends the process").fault.clone()
    }

    /// Waits until this number of changing commands is durable; returns true if it is.
    pub(crate) fn wait_durable(&self, writes: u64, patience: Duration) -> bool {
        let lacks = |state: &mut State| state.durable.is_none_or(|mark| mark.writes < writes);
        let waited = self.changed.wait_timeout_while(self.state(), patience, lacks);
        !waited.expect("a panic ends the process").1.timed_out()
    }

    /// Takes checkpoints for as long as the process lives.
    pub(crate) fn run(
        &self,
        table: &Mutex<Table>,
        mut images: Images,
        restored: Option<Restored>,
    ) -> ! {
        // A freeze would wait for the rest, and all clients for the freeze. Damage ends the
        // process.
        while restored.as_ref().is_some_and(|rest| rest.wait(PATIENCE).is_ok_and(|is_all| !is_all))
        {
        }
        let mut due = Instant::now() + self.every;
        loop {
            let asked = self.wait_until_due(due);
            due = Instant::now() + self.every;
            let taken = self.take(table, &mut images);
            let mut state = self.state();
            state.is_saving = false;
            state.answered = asked;
            let fault = taken.as_ref().err().map(ToString::to_string);
            match &fault {
                Some(fault) if state.fault.as_ref() != Some(fault) => {
                    eprintln!("checkpoint failed, goes on serving and tries again: {fault}");
                }
                None if state.fault.is_some() => eprintln!("checkpoints succeed again"),
                _ => {}
            }
            state.fault = fault;
            if let Ok(Some(mark)) = taken {
                state.durable = Some(mark);
                state.durable_unix_s = unix_s();
            }
            self.changed.notify_all();
        }
    }

    /// The number of requests by the time that the next checkpoint begins.
    fn wait_until_due(&self, due: Instant) -> u64 {
        let mut state = self.state();
        while state.asked == state.answered {
            let left = due.saturating_duration_since(Instant::now());
            state = match (self.every.is_zero(), left.is_zero()) {
                (true, _) => self.changed.wait(state).expect("a panic ends the process"),
                (false, true) => break,
                (false, false) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.expect("a panic ends the process").0
                }
            };
        }
        state.asked
    }

    /// Takes one checkpoint; `None` if the newest image is up to date.
    fn take(&self, table: &Mutex<Table>, images: &mut Images) -> Result<Option<Mark>> {
        let lock = || table.lock().expect("a panic ends the process");
        let arena = lock().memory().arena().clone();
        // Without the lock: the last checkpoint may still be thawing.
        arena.wait_live(PATIENCE);
        let (frozen, root, mark) = {
            // Commands run under this lock: for every client the freeze is between two of them.
            let mut table = lock();
            let writes = table.writes();
            let mut state = self.state();
            if state.durable.is_some_and(|durable| durable.writes == writes) {
                return Ok(None);
            }
            state.is_saving = true;
            drop(state);
            let mark = Mark { generation: table.begin_generation(), writes };
            (arena.freeze()?, table.memory().root(), mark)
        };
        let saved = images.save(&frozen, root, mark);
        lock().memory_mut().thaw(frozen)?;
        saved.map(|()| Some(mark))
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

//! A call of the library of `cowslip run` by one of the program's threads, and its words
//! ([`cowslip_sys::hold_point`]).

use std::cell::Cell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use cowslip_sys::hold_point::{self, Exchange, FoundExchange, Word};
use cowslip_sys::ptrace::Tracee;
use cowslip_sys::target::Target;
use cowslip_sys::{BorrowedFd, Errno, Result, memfile};

use crate::inject::{Answers, Entered, Injection, Sites, room_for_function};
use crate::library::Library;
use crate::stop::{Threads, interrupt};
use crate::thread::{self, ThreadState};

/// All signals that a thread can block.
const ALL_SIGNALS: u64 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));
/// Two signals that libc keeps for itself, and blocks in no mask.
const OF_LIBC: u64 = 1 << 31 | 1 << 32;
/// The name of the library's threads.
const SERVICE: &str = "cowslip";
/// The stack that the library may need.
const STACK_BYTES: u64 = 64 << 10;
/// For an answer of the library: a freeze waits for other threads.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// For one that has to freeze the arenas, or take them back, while the program stands still.
pub(crate) const PATIENCE_TO_FREEZE: Duration = Duration::from_secs(30);
const NAP: Duration = Duration::from_micros(20);
/// Looks without a nap.
const SPINS: u32 = 100;

/// Answers of threads, by their numbers.
pub(crate) type Known = HashMap<i32, Answers>;

/// True in the library's threads, and in others while they are in the library's code.
pub(crate) fn blocks_all(tracee: &Tracee) -> Result<bool> {
    Ok(tracee.blocked_signals()? | OF_LIBC == ALL_SIGNALS)
}

/// True for one of the library's threads.
pub(crate) fn is_service(tracee: &Tracee, pid: i32) -> Result<bool> {
    Ok(tracee.thread() != pid
        && blocks_all(tracee)?
        && thread::name(pid, tracee.thread()) == SERVICE)
}

/// Lets the library's threads go on that a signal has stopped with the program, beside one that goes on already.
fn wake_services(threads: &mut Threads, pid: i32, caller: i32) -> Result<()> {
    let rests = |tracee: &&mut Tracee| {
        tracee.thread() != caller && !tracee.is_stopped() && tracee.is_stopped_with_all()
    };
    for tracee in threads.all.iter_mut().filter(rests) {
        interrupt(tracee)?;
        if tracee.has_ended() {
            continue;
        }
        match is_service(tracee, pid)? {
            true => tracee.go_on_alone()?,
            false => tracee.go_on()?,
        }
    }
    Ok(())
}

/// One of the program's threads, in the library, which is ready.
pub(crate) struct Request<'a> {
    pub(super) target: &'a Target,
    pub(super) memory: BorrowedFd<'a>,
    pub(super) began: Instant,
    /// Its state before.
    pub(super) thread: ThreadState,
    pub(super) entered: Entered,
    /// Its stack is the program's again.
    pub(super) has_forked: Cell<bool>,
}

impl<'a> Request<'a> {
    /// Has a thread call the library, while the others run. `None` if no thread can.
    pub(crate) fn send(
        request: hold_point::Request,
        (target, sites): (&'a Target, Sites),
        library: &Library,
        memory: BorrowedFd<'a>,
        threads: &mut Threads,
        known: &Known,
    ) -> Result<Option<Self>> {
        let limits = target.read_file("limits")?;
        // A wait with a time limit has all of its time again after the call.
        for may_wait in [false, true] {
            for i in 0..threads.all.len() {
                // Signals stop the others, which are traced too.
                threads.pass_on();
                let tracee = &mut threads.all[i];
                let began = Instant::now();
                let Some(answers) = known.get(&tracee.thread()) else { continue };
                if !may_wait && answers.waits_in.is_some() {
                    continue;
                }
                interrupt(tracee)?;
                if tracee.has_ended() {
                    continue;
                }
                let maps = target.read_file("maps")?;
                let room =
                    || room_for_function(tracee, &maps, memory, STACK_BYTES, most_stack(&limits));
                let Some(room) = (!blocks_all(tracee)?).then(room).flatten() else {
                    tracee.go_on()?;
                    continue;
                };
                let thread = ThreadState::read(tracee, target.pid(), memory, Some(answers))?;
                let waits_in = answers.waits_in;
                let injection = Injection::prepare_waiting(tracee, room, memory, sites, waits_in)?;
                let entered = injection.enter(library.hold, request)?;
                wake_services(threads, target.pid(), thread.id)?;
                let has_forked = Cell::new(false);
                let request = Self { target, memory, began, thread, entered, has_forked };
                // A signal that stops the program stops neither this thread, inside the library, nor those it waits for.
                let runs_on = |tracee: &Tracee| {
                    tracee.thread() == request.thread.id
                        || is_service(tracee, target.pid()).unwrap_or(false)
                };
                let passing = || threads.pass_on_but(runs_on);
                return match request.wait_for(Word::Ready, memory, PATIENCE, passing) {
                    Ok(_) => Ok(Some(request)),
                    Err(errno) => request.cancel(threads).and(Err(errno)),
                };
            }
        }
        Ok(None)
    }

    /// Reads the exchange, of the program or of its child.
    pub(crate) fn read(&self, memory: BorrowedFd<'_>) -> Result<FoundExchange> {
        let mut bytes = [0; Exchange::BYTES];
        memfile::read_exact_at(memory, &mut bytes, self.entered.exchange)?;
        Ok(Exchange::read(&bytes))
    }

    /// Waits for a word of the library.
    pub(crate) fn wait_for(
        &self,
        word: Word,
        memory: BorrowedFd<'_>,
        patience: Duration,
        mut between: impl FnMut(),
    ) -> Result<FoundExchange> {
        let began = Instant::now();
        for spins in 0.. {
            let found = self.read(memory)?;
            match found.word {
                Some(now) if now == word => return Ok(found),
                Some(Word::Failed) => return Err(found.errno),
                _ if began.elapsed() > patience => break,
                _ => between(),
            }
            if spins < SPINS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
        Err(Errno::TIMEDOUT)
    }

    /// Says a word to the thread, which is stopped, if it is still in the library: later its stack is the program's again.
    pub(crate) fn say(&self, tracee: &Tracee, word: Word) -> Result<bool> {
        let is_inside = self.is_inside(tracee)?;
        let found = self.read(self.memory)?.word;
        let listens = match word {
            Word::Go => found == Some(Word::Ready),
            Word::Leave => found == Some(Word::Back),
            _ => matches!(found, Some(Word::Asked | Word::Ready | Word::Go | Word::Failed)),
        };
        if is_inside && listens {
            memfile::write_at(self.memory, &(word as u32).to_ne_bytes(), self.entered.exchange)?;
        }
        Ok(is_inside && listens)
    }

    fn is_inside(&self, tracee: &Tracee) -> Result<bool> {
        const MOST_BYTES: u64 = 1 << 20;
        let depth = self.entered.exchange.wrapping_sub(tracee.registers()?.rsp);
        Ok(blocks_all(tracee)? && depth < MOST_BYTES)
    }

    /// The thread.
    pub(crate) fn thread(&self) -> i32 {
        self.thread.id
    }

    /// False if another thread of the program is in the library, which stays as it is on the way back to a mark.
    pub(crate) fn is_alone(&self, library: &Library, threads: &Threads) -> Result<bool> {
        for tracee in threads.all.iter().filter(|tracee| tracee.thread() != self.thread.id) {
            // Other threads may block all signals, too.
            if blocks_all(tracee)?
                && !is_service(tracee, self.target.pid())?
                && library.is_called_by(&tracee.registers()?, self.memory)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets the library's threads go on, of a program that is stopped: the library waits for them.
    pub(crate) fn let_services_go_on(&self, threads: &mut Threads) -> Result<()> {
        for tracee in threads.all.iter_mut().filter(|tracee| tracee.is_stopped()) {
            if is_service(tracee, self.target.pid())? {
                tracee.go_on_alone()?;
            }
        }
        Ok(())
    }

    /// Has the thread go on without a fork, unless it has forked or is gone.
    pub(crate) fn cancel(&self, threads: &mut Threads) -> Result<()> {
        threads.go_on();
        if self.has_forked.get() {
            return Ok(());
        }
        let Some(tracee) = threads.find(self.thread.id) else { return Ok(()) };
        interrupt(tracee)?;
        if !tracee.has_ended() {
            self.say(tracee, Word::Cancelled)?;
            self.leave(tracee)?;
        }
        Ok(())
    }

    /// Lets the thread, which is stopped, leave the library, even of a program that a signal has stopped.
    fn leave(&self, tracee: &mut Tracee) -> Result<()> {
        let began = Instant::now();
        while !tracee.has_ended()
            && tracee.is_stopped_with_all()
            && self.is_inside(tracee)?
            && began.elapsed() < PATIENCE
        {
            tracee.go_on_alone()?;
            std::thread::sleep(NAP);
            interrupt(tracee)?;
        }
        if tracee.has_ended() { Ok(()) } else { tracee.go_on() }
    }
}

/// The longest stack of a main thread, by the text of `/proc/PID/limits`.
fn most_stack(limits: &str) -> u64 {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max stack size"));
    let soft = line.and_then(|line| line.split_ascii_whitespace().next());
    soft.map_or(0, |soft| soft.parse().unwrap_or(u64::MAX))
}

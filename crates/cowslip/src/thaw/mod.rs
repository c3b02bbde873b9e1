//! Thaw: private copies go back into the file, chunk by chunk, while threads write.
//!
//! ```text
//!   observe ──▶ decide ([`crate::plan`]) ──▶ perform ──▶ … ──▶ all live
//!      ▲ look again later                       │ failed: stays frozen, tried again later
//!      └────────────────────────────────────────┘
//! ```
//! [`crate::arena::chunk`] thaws a chunk.

pub(crate) mod clean;
mod consolidate;
mod last_thread;
mod observe;
mod perform;
pub(crate) mod rest;
pub(crate) mod serve;

use cowslip_sys::Errno;
use cowslip_sys::error::{During, Error, Result};
use cowslip_sys::pagemap::Scanner;

use crate::arena::chunk::{self, Thawing, at_once};
use crate::arena::inheritance::youngest_read;
use crate::arena::state::{Chunk, Hold, Shared, State};
use crate::mapping::backing_file::CLOSED;
use crate::plan;
use crate::plan::settings::thaw::LONGEST_BEFORE_FORK_NS;
use crate::service::{Look, Window};
use crate::timing::{Deadline, Stopwatch};
use observe::{Observer, is_short_of_memory};
use perform::{finish, perform};

pub(crate) use perform::Step;

/// Does one small piece of background work.
pub(crate) fn step(shared: &Shared, state: &mut State) -> Step {
    loop {
        let mut observer = Observer::new(shared, state, Look::Thorough);
        let task = observer.decide(plan::next);
        // Looks may be urgent, near a limit. Work that holds no thread is not; a hold raises the thread again.
        if let Some(service) = shared.service(state) {
            service.set_ordinary();
        }
        if let Some(step) = perform(shared, state, task) {
            return step;
        }
    }
}

/// While memory is short: thaws all that can be thawed before it is frozen again. Otherwise each copy that is there now
/// would be made once more, and the first would stay until the child has ended.
pub(super) fn before_fork(shared: &Shared, state: &mut State) {
    let service = shared.service(state);
    if !is_short_of_memory(shared, state, service.as_deref(), Look::Quick) {
        return;
    }
    // The thaw can wait, and this thread must not wait for itself.
    let Ok(_blocked) = chunk::enter(shared.range) else { return };
    let deadline = Deadline::after_ns(LONGEST_BEFORE_FORK_NS);
    while state.not_live() > 0
        && !deadline.has_passed()
        && matches!(step(shared, state), Step::Again)
    {}
    if let Some(service) = service {
        service.window.close();
    }
}

/// Makes chunks live that a failed operation left between two states: a child would lack a part of them. Their base has
/// no readers, as there was no fork since.
pub(crate) fn complete_partial(shared: &Shared, state: &mut State) -> Result<()> {
    let partial: Vec<_> = state.map.runs(|chunk| chunk == Chunk::Partial).flatten().collect();
    for chunk in partial {
        at_once(shared, state, chunk).map_err(|errno| {
            let error = Error::from_errno("make memory live again after a failure", errno)
                .on(shared.chunk_range(chunk, 1));
            match errno {
                Errno::NODEV => nothing_holds_off(error),
                _ => error.advise("try again"),
            }
        })?;
    }
    Ok(())
}

/// Copies all borrowed memory into the arena's own file, in this thread, while others run. A held arena stays as it is,
/// and so does that of a child that reads its parent's. True if the service thread has to do a part of it, as this
/// thread's stack is there.
pub(crate) fn end_borrowing(shared: &Shared) -> Result<bool> {
    let mut from = 0;
    let mut is_left = false;
    loop {
        // Other threads may have the arena between two chunks.
        let mut state = shared.lock();
        let can = state.hold().is_none() && state.generations.view_count() == 0;
        let next = state.map.next_run(from, 1, |chunk| chunk == Chunk::Borrowed);
        let Some(one) = next.filter(|_| can) else { return Ok(is_left) };
        from = one.end;
        let range = shared.chunk_range(one.start, 1);
        if chunk::contains_current_stack(range) {
            is_left = true;
            state.keeps_borrowed = false;
            shared.notify(&state);
            continue;
        }
        at_once(shared, &mut state, one.start).map_err(|errno| still_borrowed(errno).on(range))?;
    }
}

/// The error where there is no userfaultfd. In Rust, [`Arena::thaw_exclusive`](crate::Arena::thaw_exclusive) does without it;
/// C and Python have nothing of the kind.
fn nothing_holds_off(error: Error) -> Error {
    error.because("nothing holds writers off").advise(
        "try again, or make the arena with userfaultfd: `cowslip doctor` says what that needs",
    )
}

fn still_borrowed(errno: Errno) -> Error {
    let error = Error::from_errno("copy memory that is borrowed from a template", errno);
    match errno {
        Errno::BADF => error.because(CLOSED),
        Errno::NODEV => nothing_holds_off(error),
        _ => error
            .because("it is unchanged, and still borrowed")
            .advise("try again when there is memory for a copy"),
    }
}

/// Thaws everything in this thread, while no thread writes.
pub(crate) fn unattended(shared: &Shared, state: &mut State) -> Result<()> {
    const OPERATION: &str = "thaw";
    let is_held = state.hold().is_some_and(|hold| hold != Hold::Paused);
    let is_viewed = state.generations.view_count() > 0;
    if is_held || is_viewed || youngest_read(shared, state).is_some() {
        return Err(Error::from_errno(OPERATION, Errno::BUSY).because(
            "a view, a child or a template still reads the frozen memory, or it is held for I/O",
        ));
    }
    let scanner = Scanner::open().during(OPERATION)?;
    let window = Window::reserve().during(OPERATION)?;
    let thawing = Thawing { shared, guard: None, scanner: &scanner, window: &window };
    let watch = Stopwatch::start();
    while let Some(run) = state.map.next_run(0, 1, Chunk::is_private) {
        let range = shared.chunk_range(run.start, 1);
        thawing.thaw(state, run).map_err(|errno| Error::from_errno(OPERATION, errno).on(range))?;
    }
    finish(shared, state, watch);
    Ok(())
}

//! A fork that another process asks for, with all threads stopped around it ([`cowslip_sys::hold_point`]).
//!
//! For a mark, and on the way back to one ([`super::marks`]), they are stopped before anything is frozen.
//!
//! Copies of the child have all of the program's threads, at any point of its code and of this library's. They hold no
//! lock of this library: `prepare` has taken all of them, and the child releases them. Service threads are in no copy.
//!
//! # Safety
//! [`hold`] runs on a thread that did not block all signals, with all of them blocked: like a signal's handler that
//! calls `_Fork()`, which may come at the same places. It returns to the frame of such a handler. The exchange lies in that
//! frame, on the thread's own stack, and stays there until it returns.

use core::convert::Infallible;
use core::ffi::c_int;
use core::time::Duration;

use cowslip::raw::is_any_at_rest;
use cowslip_sys::hold_point::{Exchange, HoldPoint, LEFT_ALONE, MOST_NS, Request, Word};
use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::reserved_fd::ForkGate;
use cowslip_sys::{Errno, memory, passthrough, waiting};

use crate::arena::registry::{RANGES, arenas};
use crate::arena::{service, wipe_rendezvous};
use crate::branch::{marks, socket};
use crate::hooks::atfork::{in_child, in_parent, is_of_one_instant, prepare, set_flags};
use crate::hooks::heap;
use crate::rt::{alloc, deferred_errno, fork_state};

/// Between looks at the word.
const NAP: Duration = Duration::from_micros(20);

/// Found by other processes. A name keeps it in the library.
#[unsafe(export_name = "cowslip_hold_point")]
static POINT: HoldPoint = HoldPoint::new(hold, &RANGES);

extern "C" fn hold(exchange: &Exchange) {
    let blocked = BlockedSignals::enter();
    let program = process::pid();
    let answer = match exchange.request() {
        Request::RollBack(child) => {
            // No error from here on: this stack is another one's then.
            let Err(errno) = roll_back(exchange, child);
            Err(errno)
        }
        request => fork(exchange, request == Request::Mark),
    };
    drop(blocked);
    match answer {
        Ok(0) => {
            fork_state::stand_for(program);
            socket::begin_copy();
            exchange.set(Word::Held);
            let _ = wait(exchange, || None::<Result<(), _>>);
            process::exit_now(LEFT_ALONE);
        }
        Ok(_) | Err(Errno::CANCELED) => {}
        Err(errno) => {
            exchange.fail(errno);
            // This stack is the program's again afterwards: the other process must have read it.
            let _ = wait(exchange, || (exchange.word() == Some(Word::Cancelled)).then_some(Ok(())));
        }
    }
}

/// Takes the arenas back once the other process has stopped all threads but this one, and waits for it to set this one's state.
fn roll_back(exchange: &Exchange, child: i32) -> Result<Infallible, Errno> {
    if !alloc::is_lockable() {
        return Err(Errno::AGAIN);
    }
    until_stopped(exchange)?;
    marks::roll_back(child)?;
    let gate = ForkGate::close();
    exchange.set(Word::Back);
    while exchange.word() != Some(Word::Leave) {
        let _ = waiting::nap(NAP);
    }
    drop(gate);
    exchange.set(Word::Left);
    loop {
        let _ = waiting::nap(NAP);
    }
}

/// Says that this thread is ready, and waits until the others are stopped. `ECANCELED` if the other process has given up.
fn until_stopped(exchange: &Exchange) -> Result<(), Errno> {
    memory::area_apart().into_iter().for_each(|area| exchange.set_own(area));
    if !exchange.begin() {
        return Err(Errno::CANCELED);
    }
    wait(exchange, || match exchange.word() {
        Some(Word::Ready) => None,
        Some(Word::Go) => Some(Ok(())),
        _ => Some(Err(Errno::CANCELED)),
    })
}

/// Forks, once the other process has stopped all threads but this one. `ECANCELED` if it has given up.
fn fork(exchange: &Exchange, is_mark: bool) -> Result<c_int, Errno> {
    if !alloc::is_lockable() {
        return Err(Errno::AGAIN);
    }
    if is_mark {
        marks::prepare(exchange.may_start())?;
    }
    let apart = arenas().filter_map(|arena| arena.raw().service_memory());
    apart.enumerate().for_each(|(i, range)| exchange.apart().set(i, range));
    let views = match is_mark {
        true => Some(until_stopped(exchange).and_then(|()| marks::views())?),
        false => None,
    };
    prepare();
    if let Some(errno) = deferred_errno::take() {
        return Err(errno);
    }
    let answer = fork_prepared(exchange, views.is_some());
    if answer == Ok(0) {
        // They are the program's.
        core::mem::forget(views);
        in_child();
        return answer;
    }
    wipe_rendezvous::give_up();
    in_parent();
    match service::count() {
        0 if exchange.may_start() => heap::start_service(),
        // It cannot be started here.
        0 => heap::note_thread(),
        _ => {}
    }
    answer.inspect(|child| match views {
        Some(views) => marks::keep(*child, views),
        None => service::watch_child(*child),
    })
}

fn fork_prepared(exchange: &Exchange, are_stopped: bool) -> Result<c_int, Errno> {
    if wipe_rendezvous::is_awaited() {
        // Copies would have to empty it as well: their program counts on its content.
        return Err(Errno::OPNOTSUPP);
    }
    if !is_of_one_instant() {
        return Err(Errno::BUSY);
    }
    if is_any_at_rest() {
        // It has locks of the program's allocator, and is in no copy.
        return Err(Errno::AGAIN);
    }
    set_flags(0);
    if !are_stopped {
        until_stopped(exchange)?;
    } else if exchange.word() != Some(Word::Go) {
        return Err(Errno::CANCELED);
    }
    clone()
}

fn clone() -> Result<c_int, Errno> {
    // SAFETY: without flags, a stack or places to write it is fork(2), whose child sends no signal at its end.
    match unsafe { passthrough::syscall(libc::SYS_clone, 0, 0, 0, 0, 0, 0) } {
        -1 => Err(cowslip_sys::errno::current()),
        child => Ok(child as c_int),
    }
}

/// Waits for an answer while the other process lives, for some time.
fn wait<T>(exchange: &Exchange, look: impl Fn() -> Option<Result<T, Errno>>) -> Result<T, Errno> {
    let until_ns = process::now_ns() + MOST_NS;
    loop {
        // First: this thread may have been stopped until then, with the answer there.
        if let Some(answer) = look() {
            return answer;
        }
        if process::now_ns() >= until_ns || exchange.is_alone() {
            return Err(Errno::TIMEDOUT);
        }
        waiting::nap(NAP)?;
    }
}

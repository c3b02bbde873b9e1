//! `cowslip_branch_point`: a place where the program lets `cowslip branch` copy it.
//!
//! The call comes from the program itself, not from its allocator, so libc's functions may be called here.
//! [`cowslip::raw::branch`] describes the messages and their senders.
//!
//! # Safety
//! Names are C strings or null. Only the calling thread lives on in a copy and in the supervisor: there memory comes
//! from this library's allocator, and no function of libc is called that takes a lock another thread may have held.

use core::ffi::{c_char, c_int};
use core::time::Duration;

use cowslip::raw::branch::{Reply, Request, VERSION};
use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::{AsFd, AsRawFd, Errno, OwnedFd, packets, socket};

use crate::branch::forks::{fork, fork_again};
use crate::branch::listener::Listener;
use crate::branch::socket::{begin_copy, with_listener};
use crate::branch::{copy, supervisor};

/// How long a command may take after connecting to send its request.
const PATIENCE: Duration = Duration::from_secs(1);

type Handler = Option<unsafe extern "C" fn()>;

/// Functions that run in the program around its fork.
struct Handlers {
    prepare: Handler,
    in_parent: Handler,
}

fn call(handler: Handler) {
    if let Some(handler) = handler {
        // SAFETY: C's contract: the function takes and returns nothing, and may run on the thread that passed it, at
        // the moment for which it was passed.
        unsafe { handler() };
    }
}

/// How a call ends.
enum Outcome {
    /// In the program.
    GoOn(Errno),
    /// In a copy.
    Copy(u32),
}

/// Lets `cowslip branch` copy the program for `timeout_ms` (-1: until it is told to go on), as poll(2) waits. Returns
/// this copy's number, counted from 0; in the program itself -1 and an errno.
#[unsafe(no_mangle)]
unsafe extern "C" fn cowslip_branch_point(name: *const c_char, timeout_ms: c_int) -> c_int {
    // SAFETY: C's contract.
    unsafe { cowslip_branch_point_atfork(name, timeout_ms, None, None, None) }
}

/// `cowslip_branch_point` for runtimes that prepare a fork, like `pthread_atfork(3)`: `prepare` runs before each fork
/// of the program, `in_parent` after it, and `in_child` in each copy, before any other code of the program. Null means
/// none.
#[unsafe(no_mangle)]
unsafe extern "C" fn cowslip_branch_point_atfork(
    name: *const c_char,
    timeout_ms: c_int,
    prepare: Handler,
    in_parent: Handler,
    in_child: Handler,
) -> c_int {
    let handlers = Handlers { prepare, in_parent };
    let serve =
        |listener: &Listener| serve(listener, timeout_ms, &handlers).unwrap_or_else(Outcome::GoOn);
    // SAFETY: C's contract.
    match unsafe { with_listener(name, serve) } {
        Ok(Outcome::Copy(index)) => {
            call(in_child);
            index.cast_signed()
        }
        Ok(Outcome::GoOn(errno)) | Err(errno) => fail(errno),
    }
}

/// Returns a descriptor that is readable while a command waits for this process to reach its branch point, or -1 and an
/// errno. The descriptor is the library's: the program must not close it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cowslip_branch_fd(name: *const c_char) -> c_int {
    // SAFETY: C's contract.
    match unsafe { with_listener(name, |listener| listener.as_fd().as_raw_fd()) } {
        Ok(fd) => fd,
        Err(errno) => fail(errno),
    }
}

fn fail(errno: Errno) -> c_int {
    // SAFETY: errno is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
    -1
}

/// Answers requests until the time is up.
fn serve(listener: &Listener, timeout_ms: c_int, handlers: &Handlers) -> Result<Outcome, Errno> {
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let began_ns = process::now_ns();
    loop {
        let waited = Duration::from_nanos(process::now_ns() - began_ns);
        let left = timeout.map(|timeout| timeout.saturating_sub(waited));
        if !packets::wait(listener.as_fd(), left)? {
            return Err(Errno::AGAIN);
        }
        let Some((connection, request)) = listener.next_request(PATIENCE)? else { continue };
        match request {
            Request::Release => {
                let _ = socket::send(connection.as_fd(), &Reply::Released.to_bytes(), &[]);
                return Err(Errno::CANCELED);
            }
            Request::Branch { version, copies } if version == VERSION && copies > 0 => {
                if let Some(index) = branch(connection, copies, handlers) {
                    return Ok(Outcome::Copy(index));
                }
            }
            _ => refuse(&connection, Errno::PROTO),
        }
    }
}

/// Tells the command that the request failed. The command may already be gone.
fn refuse(connection: &OwnedFd, errno: Errno) {
    let reply = Reply::Failed { errno: errno.raw_os_error(), started: 0 };
    let _ = socket::send(connection.as_fd(), &reply.to_bytes(), &[]);
}

/// Forks the supervisor, which makes the copies. Returns the number of the copy this is, or `None` in the program.
///
/// The supervisor is not the program's child, or its end would reach the program: its parent ends at once.
fn branch(connection: OwnedFd, copies: u32, handlers: &Handlers) -> Option<u32> {
    call(handlers.prepare);
    copy::flush_output();
    let blocked = BlockedSignals::enter();
    let index = match fork() {
        Err(errno) => {
            refuse(&connection, errno);
            None
        }
        Ok(0) => match fork_again() {
            Ok(0) => {
                let index = supervisor::supervise(&connection, copies);
                begin_copy();
                Some(index)
            }
            answer => {
                if let Err(errno) = answer {
                    refuse(&connection, errno);
                }
                process::exit_now(0)
            }
        },
        Ok(pid) => {
            // Fails if the program has no ended children (`SIGCHLD`), or waited for this one elsewhere.
            let _ = process::wait_for(pid);
            None
        }
    };
    drop(connection);
    drop(blocked);
    if index.is_none() {
        call(handlers.in_parent);
    }
    index
}

//! The process that keeps a mark. Its standard input is a socket of the command that started it.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use cowslip_process::{Mark, look};
use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::exit_code::from_error;
use cowslip_sys::target::Target;
use cowslip_sys::{AsFd, Errno, OwnedFd, packets, process, ptrace, socket};
use serde_json::{Value, json};

use crate::exit::{self, CommandResult};

/// Between looks for threads that could not be stopped.
const REST: Duration = Duration::from_millis(10);

/// The longest answer.
pub(super) const MOST_ANSWER_BYTES: usize = 4096;

/// Marks the process, says so, and answers until the program ends or the mark is dropped.
pub(super) fn run(pid: i32) -> CommandResult {
    // Its terminal may go.
    for signal in [signal_hook::consts::SIGHUP, signal_hook::consts::SIGPIPE] {
        let ignored = signal_hook::flag::register(signal, std::sync::Arc::default());
        ignored.map_err(exit::system("ignore a signal"))?;
    }
    let marked = mark(pid);
    let first = match &marked {
        Ok((_, _, answer)) => answer.clone(),
        Err(error) => failure(error),
    };
    let starter = io::stdin().as_fd().try_clone_to_owned().map_err(exit::system("answer"))?;
    // If the command is gone, the mark is there all the same.
    let _ = writeln!(UnixStream::from(starter), "{first}");
    let (mark, listener, _) = marked?;
    while let Some(connection) = next(&mark, &listener)? {
        let mut buffer = [0; 64];
        let Ok((len, _)) = socket::receive(connection.as_fd(), &mut buffer) else { continue };
        let send = |answer: Value| {
            // An error means that the command is gone.
            let _ = socket::send(connection.as_fd(), answer.to_string().as_bytes(), &[]);
        };
        match &buffer[..len] {
            super::DROP => {
                // Before the answer: the next mark may follow it at once.
                drop((mark, listener));
                send(json!({"schema": "cowslip.mark/1", "pid": pid}));
                break;
            }
            request @ (super::ROLL_BACK | super::ROLL_BACK_BY_FORCE) => {
                let starts_ended = request == super::ROLL_BACK_BY_FORCE;
                send(match mark.roll_back(starts_ended) {
                    Ok(done) => json!({
                        "schema": "cowslip.rollback/1",
                        "pid": pid,
                        "bytes": done.bytes,
                        "pause_ns": done.pause.as_nanos() as u64,
                    }),
                    Err(error) => failure(&error),
                })
            }
            _ => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A mark, the socket for requests, and the answer for the command.
fn mark(pid: i32) -> Result<(Mark, OwnedFd, Value)> {
    let operation = "mark a process";
    let listener =
        packets::listen_at_name(super::name(pid).as_bytes()).map_err(|errno| match errno {
            Errno::ADDRINUSE => Error::new(ErrorKind::Busy, operation)
                .because("it is marked already, or another user has taken the name")
                .advise(format!("cowslip mark {pid} --drop")),
            errno => Error::from_errno(operation, errno),
        })?;
    let mark = look(pid)?.mark()?;
    let holder = mark.holder();
    let answer = json!({
        "schema": "cowslip.mark/1",
        "pid": pid,
        "threads": holder.threads().len(),
        "pause_ns": holder.pause().as_nanos() as u64,
    });
    Ok((mark, listener, answer))
}

fn failure(error: &Error) -> Value {
    json!({"error": error.to_string(), "code": from_error(error)})
}

/// The next connection, of the same user or of root; `None` once the program has ended.
fn next(mark: &Mark, listener: &OwnedFd) -> Result<Option<OwnedFd>> {
    let operation = "keep a mark";
    let failed = |errno| Error::from_errno(operation, errno);
    let Ok(program) = Target::open(mark.holder().program()) else { return Ok(None) };
    loop {
        let rest = (!ptrace::let_late_ones_go()).then_some(REST);
        let ready = process::wait_many_readable(&[listener.as_fd(), program.as_fd()], rest)
            .map_err(failed)?;
        if ready[1] {
            return Ok(None);
        }
        let Ok(connection) = packets::accept(listener.as_fd()) else { continue };
        let peer = packets::peer(connection.as_fd()).map_err(failed)?;
        if [0, process::effective_uid()].contains(&peer.uid) {
            return Ok(Some(connection));
        }
    }
}

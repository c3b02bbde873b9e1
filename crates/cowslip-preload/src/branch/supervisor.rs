//! The supervisor makes the copies of one instant, waits for them, and ends them when the command is gone.
//!
//! It is a child of the program that runs nothing else, so its memory is the program's at the instant of the first
//! fork. All signals are blocked in it.

use std::io::{PipeReader, PipeWriter, Write};

use cowslip::raw::branch::{MOST_BYTES, Reply, Request};
use cowslip_sys::supervision;
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd, process, socket};

use super::copy::{self, Birth};
use super::forks::fork_again;

const NAME: &core::ffi::CStr = c"cowslip-branch";

/// A copy that has not ended.
struct Running {
    index: u32,
    pid: i32,
}

/// Makes `count` copies as the command requests. Returns only in the copies, with the number of each.
pub(super) fn supervise(connection: &OwnedFd, count: u32) -> u32 {
    let mut copies = Vec::new();
    match make(connection.as_fd(), count, &mut copies) {
        Ok(Made::Copy(index)) => index,
        Ok(Made::All(ended)) => attend(connection.as_fd(), &ended, copies),
        Err(errno) => {
            end_all(&copies);
            let started = copies.len() as u32;
            let reply = Reply::Failed { errno: errno.raw_os_error(), started };
            let _ = socket::send(connection.as_fd(), &reply.to_bytes(), &[]);
            process::exit_now(0)
        }
    }
}

enum Made {
    /// In a copy.
    Copy(u32),
    /// In the supervisor, with a descriptor that is readable when a copy has ended.
    All(OwnedFd),
}

/// Makes all copies, or fails; `copies` then lists those that exist.
fn make(connection: BorrowedFd<'_>, count: u32, copies: &mut Vec<Running>) -> Result<Made, Errno> {
    let former = supervision::become_supervisor(NAME)?;
    let ended = supervision::ended_children()?;
    let (gate, mut opening) = pipe()?;
    let supervisor = process::pid();
    socket::send(connection, &Reply::Ready.to_bytes(), &[])?;
    let mut variables = Vec::new();
    let mut buffer = vec![0; MOST_BYTES];
    while copies.len() < count as usize {
        let (length, files) = socket::receive(connection, &mut buffer)?;
        let argument = match Request::parse(&buffer[..length]).ok_or(Errno::PIPE)? {
            Request::Variable(text) => {
                variables.push(text.to_vec());
                continue;
            }
            Request::Copy(argument) => argument,
            _ => return Err(Errno::PROTO),
        };
        let streams = streams(files)?;
        let index = copies.len() as u32;
        let pid = fork_again()?;
        if pid == 0 {
            drop(opening);
            let birth = Birth {
                index,
                count,
                supervisor,
                argument,
                variables: &variables,
                streams: &streams,
                gate: &gate,
                connection,
                former: &former,
            };
            copy::begin(&birth);
            return Ok(Made::Copy(index));
        }
        copies.push(Running { index, pid });
        // Parent and child both do this: whichever is first, signals to the group reach the copy.
        let _ = supervision::lead_group(pid);
    }
    copy::close_streams();
    opening.write_all(&vec![copy::GO; count as usize]).map_err(|_| Errno::PIPE)?;
    Ok(Made::All(ended))
}

fn pipe() -> Result<(PipeReader, PipeWriter), Errno> {
    let (gate, opening) = std::io::pipe().map_err(errno_of)?;
    let above = supervision::above_streams;
    Ok((above(gate.into())?.into(), above(opening.into())?.into()))
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn streams(files: Vec<OwnedFd>) -> Result<[OwnedFd; 3], Errno> {
    let files = files.into_iter().map(supervision::above_streams).collect::<Result<Vec<_>, _>>()?;
    files.try_into().map_err(|_| Errno::PROTO)
}

/// Reports the copies that have ended, forwards the command's signals, and ends the copies when the command is gone.
fn attend(connection: BorrowedFd<'_>, ended: &OwnedFd, mut copies: Vec<Running>) -> ! {
    let mut buffer = [0; 64];
    while !copies.is_empty() {
        let mut ready = [false; 2];
        if process::wait_readable(&[connection, ended.as_fd()], &mut ready, None).is_err() {
            break;
        }
        if ready[1] {
            supervision::drain(ended);
            while let Some((pid, status)) = supervision::next_ended() {
                let Some(place) = copies.iter().position(|copy| copy.pid == pid) else { continue };
                let reply = Reply::Ended { copy: copies.swap_remove(place).index, status };
                let _ = socket::send(connection, &reply.to_bytes(), &[]);
            }
        }
        if ready[0] {
            let length = socket::receive(connection, &mut buffer).map_or(0, |(length, _)| length);
            let Some(Request::Signal(signal)) = Request::parse(&buffer[..length]) else { break };
            for copy in &copies {
                let _ = supervision::signal_group(copy.pid, signal);
            }
        }
    }
    end_all(&copies);
    process::exit_now(0)
}

/// Ends the copies and all processes that they have started.
fn end_all(copies: &[Running]) {
    for copy in copies {
        let _ = process::end_group(copy.pid, true);
    }
    // Ended processes count for a limit of processes until they are waited for.
    for copy in copies {
        let _ = process::wait_for(copy.pid);
    }
}

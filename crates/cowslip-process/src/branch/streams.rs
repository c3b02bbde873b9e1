//! Standard streams of this process for a copy: passed over a socket, so that offsets stay shared.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::FileTypeExt;

use cowslip_sys::error::{During, Error, ErrorKind, Result, errno_of};
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd, packets, process, socket};
use libc::{
    AF_UNIX, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_SEQPACKET, SYS_close, SYS_connect, SYS_recvmsg,
    SYS_socket,
};

use super::caller::Caller;

const OPERATION: &str = "pass standard streams to a copy";

/// Gives a copy, the process `pid`, at most four descriptors, and returns their numbers there.
pub(super) fn pass(
    copy: &mut Caller<'_>,
    pid: i32,
    descriptors: &[BorrowedFd<'_>],
) -> Result<Vec<u64>> {
    let name = format!("cowslip-branch-{}-{}", process::pid(), process::now_ns());
    let listener = packets::listen_at_name(name.as_bytes()).during(OPERATION)?;
    let socket = connect(copy, &name).during(OPERATION)?;
    // Any process may connect to the name.
    let connection = loop {
        let connection = packets::accept(listener.as_fd()).during(OPERATION)?;
        if packets::peer(connection.as_fd()).during(OPERATION)?.pid == pid {
            break connection;
        }
    };
    socket::send(connection.as_fd(), b"s", descriptors).during(OPERATION)?;
    let numbers = receive(copy, socket, descriptors.len()).during(OPERATION)?;
    numbers.ok_or_else(|| Error::new(ErrorKind::System, OPERATION).because("they did not arrive"))
}

/// A standard input for a program that waits for its own in a set of files (`epoll(7)`), which takes no regular file and no
/// `/dev/null`. A thread reads such an input into a pipe, until its end or the copy's. `None` for one that a set takes.
pub(super) fn watchable(input: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let failed = |error: io::Error| Error::from_errno(OPERATION, errno_of(&error));
    let mut file = File::from(input.try_clone_to_owned().map_err(failed)?);
    let kind = file.metadata().map_err(failed)?.file_type();
    if kind.is_fifo() || kind.is_socket() || file.is_terminal() {
        return Ok(None);
    }
    let (read, mut write) = io::pipe().map_err(failed)?;
    // The copy's end closes the pipe.
    let feed = move || drop(io::copy(&mut file, &mut write));
    let feed = std::thread::Builder::new().name("cowslip-input".into()).spawn(feed);
    feed.map_err(failed)?;
    Ok(Some(read.into()))
}

fn connect(copy: &mut Caller<'_>, name: &str) -> Result<u64, Errno> {
    let kind = (SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK) as u64;
    let socket = copy.call(SYS_socket, &[AF_UNIX as u64, kind, 0])?;
    let address = [&(AF_UNIX as u16).to_ne_bytes()[..], b"\0", name.as_bytes()].concat();
    let place = copy.put(0, &address)?;
    copy.call(SYS_connect, &[socket, place, address.len() as u64])?;
    Ok(socket)
}

/// Receives the message, which has been sent.
fn receive(copy: &mut Caller<'_>, socket: u64, count: usize) -> Result<Option<Vec<u64>>, Errno> {
    const VECTOR_AT: usize = 64;
    const BYTE_AT: usize = 80;
    const CONTROL_AT: usize = 96;
    const CONTROL_BYTES: usize = 32;
    const HEADER_BYTES: usize = 16;
    let vector = copy.put_words(VECTOR_AT, &[copy.place(BYTE_AT), 1])?;
    copy.put(CONTROL_AT, &[0; CONTROL_BYTES])?;
    let control = copy.place(CONTROL_AT);
    // `struct msghdr`: no name, one vector, the descriptors, flags.
    let message = copy.put_words(0, &[0, 0, vector, 1, control, CONTROL_BYTES as u64, 0])?;
    copy.call(SYS_recvmsg, &[socket, message, 0])?;
    copy.call(SYS_close, &[socket])?;
    let control: [u8; CONTROL_BYTES] = copy.get(CONTROL_AT)?;
    let len = usize::from_ne_bytes(control[..8].try_into().expect("8 bytes"));
    let number = |i: usize| {
        let bytes = control[HEADER_BYTES + 4 * i..][..4].try_into().expect("4 bytes");
        u64::from(u32::from_ne_bytes(bytes))
    };
    Ok((len == HEADER_BYTES + 4 * count).then(|| (0..count).map(number).collect()))
}

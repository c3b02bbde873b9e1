//! Passes descriptors to another process over a Unix socket (`SCM_RIGHTS`, `unix(7)`).

use core::mem::MaybeUninit;
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::retry_on_intr;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::{BorrowedFd, Errno, OwnedFd, Result};

/// Most descriptors in one message.
pub const MOST_DESCRIPTORS: usize = 4;
/// Most connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens for streams at a path, which it creates with mode 0600 from the beginning. `EADDRINUSE` if the path exists.
pub fn listen_privately(path: &Path) -> Result<OwnedFd> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    // The file gets the socket's mode. A later chmod by path could reach another file.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let listens = net::listen(&socket, BACKLOG);
    if listens.is_err() {
        let _ = rustix::fs::unlink(path);
    }
    listens.map(|()| socket)
}

/// Connects to the listener at a path, without waiting: `EAGAIN` if its queue is full, `ECONNREFUSED` if there is no
/// listener. Later sends and receives do wait.
pub fn connect_at_once(path: &Path) -> Result<OwnedFd> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Returns true for a Unix socket that listens for streams.
pub fn listens(socket: BorrowedFd<'_>) -> bool {
    net::sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && net::sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && net::sockopt::socket_acceptconn(socket) == Ok(true)
}

/// Closes it at exec, so that no program that this process becomes or starts inherits it.
pub fn close_at_exec(socket: BorrowedFd<'_>) -> Result<()> {
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)
}

/// Sends some of `bytes`, and all of `descriptors` with the first of them; returns the number of
/// bytes. `EPIPE` if the other end is closed, without a signal.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = descriptors.len() <= MOST_DESCRIPTORS;
    if !fits || !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    retry_on_intr(|| {
        net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    })
}

/// The user as which the peer acted when it connected or began to listen (`SO_PEERCRED`).
pub fn peer_uid(socket: BorrowedFd<'_>) -> Result<u32> {
    net::sockopt::socket_peercred(socket).map(|peer| peer.uid.as_raw())
}

/// Receives at most `buffer.len()` bytes and the descriptors sent with them, which close at exec. No bytes: the other
/// end is closed. `EMSGSIZE`: more descriptors arrived than [`MOST_DESCRIPTORS`].
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = retry_on_intr(|| {
        let place = &mut [IoSliceMut::new(buffer)];
        net::recvmsg(socket, place, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((message.bytes, descriptors))
}

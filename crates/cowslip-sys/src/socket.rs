//! Descriptors handed to another process over a Unix socket (`SCM_RIGHTS`, `unix(7)`).

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

/// Descriptors in one message.
pub const MOST_DESCRIPTORS: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens for streams at a path, which is made: of mode 0600 from the beginning. `EADDRINUSE` if it is there.
pub fn listen_privately(path: &Path) -> Result<OwnedFd> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    // The file gets the socket's mode. Changed by its path, it could be another file by then.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let listens = net::listen(&socket, BACKLOG);
    if listens.is_err() {
        let _ = rustix::fs::unlink(path);
    }
    listens.map(|()| socket)
}

/// Connects to who listens at a path, without waiting: `EAGAIN` if as many wait there as may, `ECONNREFUSED` if nobody
/// listens. What is sent and received later does wait.
pub fn connect_at_once(path: &Path) -> Result<OwnedFd> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Whether it is a Unix socket that listens for streams.
pub fn listens(socket: BorrowedFd<'_>) -> bool {
    net::sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && net::sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && net::sockopt::socket_acceptconn(socket) == Ok(true)
}

/// Has no program that this process becomes or starts inherit it.
pub fn close_at_exec(socket: BorrowedFd<'_>) -> Result<()> {
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)
}

/// Sends some of `bytes`, and with the first of them all of `descriptors`; how many bytes.
/// `EPIPE` if the other end is closed, without a signal.
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

/// The user who connected, or who listens: as whom the other end's process acted then (`SO_PEERCRED`).
pub fn peer_uid(socket: BorrowedFd<'_>) -> Result<u32> {
    net::sockopt::socket_peercred(socket).map(|peer| peer.uid.as_raw())
}

/// Receives at most `buffer.len()` bytes and the descriptors that came with them, which close at exec.
/// No bytes: the other end is closed. `EMSGSIZE`: more descriptors came than [`MOST_DESCRIPTORS`].
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

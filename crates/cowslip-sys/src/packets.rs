#![allow(unsafe_code)]
//! Unix sockets that preserve message boundaries (`SOCK_SEQPACKET`, `unix(7)`), and the peer of a connection.
//!
//! # Safety
//! The calls write only to the buffers that they are given, within the given size.

use core::time::Duration;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::{AsRawFd, BorrowedFd, Errno, OwnedFd, Result, passthrough};

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The process at the other end of a connection, as the kernel knows it (`SO_PEERCRED`): the connecting or the
/// listening one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its number as this process sees it; 0 if it is not visible.
    pub pid: i32,
    /// The user as which it acted.
    pub uid: u32,
}

fn socket(more: SocketFlags) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | more;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Listens at a path, which is made: of mode 0600 from the beginning. `EADDRINUSE` if it is there.
pub fn listen(path: &Path) -> Result<OwnedFd> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    // The file gets the socket's mode. Changed by its path, it could be another file by then.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Listens at an abstract name (`unix(7)`), which any process of this network namespace can connect to: see [`peer`].
pub fn listen_at_name(name: &[u8]) -> Result<OwnedFd> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to the listener at an abstract name, as [`connect`].
pub fn connect_to_name(name: &[u8]) -> Result<OwnedFd> {
    connect_at(&SocketAddrUnix::new_abstract_name(name)?)
}

/// The next connection; `EAGAIN` if there is none.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd> {
    net::accept_with(listener, SocketFlags::CLOEXEC)
}

/// Connects to the listener at a path. `ECONNREFUSED` if there is none any more, `EAGAIN` if its queue is full.
pub fn connect(path: &Path) -> Result<OwnedFd> {
    connect_at(&SocketAddrUnix::new(path)?)
}

fn connect_at(address: &SocketAddrUnix) -> Result<OwnedFd> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    net::connect(&socket, address)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// The process at the other end.
pub fn peer(socket: BorrowedFd<'_>) -> Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most `size` bytes to `found`, plain numbers, and the size to `size`.
    let answer = unsafe {
        passthrough::by_number()(
            libc::SYS_getsockopt,
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            &raw mut found,
            &raw mut size,
        )
    };
    match answer {
        0 => Ok(Peer { pid: found.pid, uid: found.uid }),
        _ => Err(crate::errno::last()),
    }
}

/// Waits until `fd` can be read, or `timeout` has passed (`None`: for ever); returns true if it can
/// be read.
///
/// # Errors
/// `EINTR` if a signal handler ran meanwhile.
pub fn wait(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool> {
    let timeout = timeout.map(|time| Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut polled, timeout.as_ref())? {
        0 => Ok(false),
        _ if polled[0].revents().contains(PollFlags::NVAL) => Err(Errno::BADF),
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use crate::process;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{AsFd, socket};

    #[test]
    fn messages_stay_apart_and_both_ends_know_each_other() {
        let path = std::env::temp_dir().join(format!("cowslip-packets-{}", process::pid()));
        let listener = listen(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(accept(listener.as_fd()).unwrap_err(), Errno::AGAIN);
        assert_eq!(listen(&path).unwrap_err(), Errno::ADDRINUSE);
        assert_eq!(wait(listener.as_fd(), Some(Duration::ZERO)), Ok(false));
        let ours = connect(&path).unwrap();
        assert_eq!(wait(listener.as_fd(), None), Ok(true));
        let theirs = accept(listener.as_fd()).unwrap();
        let me = Peer { pid: process::pid(), uid: process::effective_uid() };
        assert_eq!((peer(ours.as_fd()), peer(theirs.as_fd())), (Ok(me), Ok(me)));
        socket::send(ours.as_fd(), b"one", &[]).unwrap();
        socket::send(ours.as_fd(), b"two", &[listener.as_fd()]).unwrap();
        drop(ours);
        let mut buffer = [0; 16];
        for (text, descriptors) in [(&b"one"[..], 0), (b"two", 1), (b"", 0)] {
            let (length, received) = socket::receive(theirs.as_fd(), &mut buffer).unwrap();
            assert_eq!((&buffer[..length], received.len()), (text, descriptors));
        }
        drop(listener);
        assert_eq!(connect(&path).unwrap_err(), Errno::CONNREFUSED);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(connect(&path).unwrap_err(), Errno::NOENT);
    }
}

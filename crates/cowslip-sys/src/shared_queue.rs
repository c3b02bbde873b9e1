//! Pipes and sockets of another process: the bytes that wait in them, the kinds and other ends of sockets.

use std::collections::HashMap;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};

use crate::{BorrowedFd, Errno, Result};

/// The most bytes of a pipe that are copied.
const MOST_BYTES: usize = 1 << 20;

/// A socket, by a descriptor of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketKind {
    /// The first argument of `socket(2)`.
    pub domain: i32,
    /// The second, without flags.
    pub kind: i32,
    /// The third.
    pub protocol: i32,
    /// It takes connections (`SO_ACCEPTCONN`).
    pub listens: bool,
    /// It is, or was, connected.
    pub is_connected: bool,
}

impl SocketKind {
    /// Asks the kernel (`getsockopt(2)`, `getpeername(2)`).
    pub fn new(socket: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self {
            domain: net::sockopt::socket_domain(socket)?.as_raw().into(),
            kind: net::sockopt::socket_type(socket)?.as_raw().cast_signed(),
            protocol: net::sockopt::socket_protocol(socket)?
                .map_or(0, |protocol| protocol.as_raw().get().cast_signed()),
            listens: net::sockopt::socket_acceptconn(socket)?,
            // `EINVAL`: its other side is gone.
            is_connected: matches!(net::getpeername(socket), Ok(_) | Err(Errno::INVAL)),
        })
    }
}

/// The bytes that wait in a pipe (`tee(2)`), which keeps them; `path` is that of its descriptor in `/proc`.
pub fn waiting_in_pipe(path: &Path) -> Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let shared = rustix::fs::open(path, flags, Mode::empty())?;
    if rustix::io::ioctl_fionread(&shared)? == 0 {
        return Ok(Vec::new());
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // A shorter one takes a part.
    let _ = rustix::pipe::fcntl_setpipe_size(&write, MOST_BYTES);
    match tee(&shared, &write, MOST_BYTES, SpliceFlags::NONBLOCK) {
        Err(Errno::AGAIN) | Ok(0) => return Ok(Vec::new()),
        copied => copied?,
    };
    drop(write);
    let mut bytes = vec![0; MOST_BYTES];
    let mut len = 0;
    loop {
        match rustix::io::read(&read, &mut bytes[len..])? {
            0 => break,
            count => len += count,
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// The bytes that wait in a Unix stream socket, which keeps them (`MSG_PEEK`). None in another socket.
pub fn waiting_in_socket(socket: BorrowedFd<'_>) -> Result<Vec<u8>> {
    if net::sockopt::socket_type(socket)? != SocketType::STREAM {
        return Ok(Vec::new());
    }
    // More may come, which is then of later.
    let mut bytes = vec![0; rustix::io::ioctl_fionread(socket)? as usize];
    if !bytes.is_empty() {
        let (_, len) = net::recv(socket, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        bytes.truncate(len);
    }
    Ok(bytes)
}

/// Fills a pipe, by a descriptor that may write it; no other file. `EAGAIN` if it is too short. It does not block afterwards.
pub fn fill_pipe(pipe: BorrowedFd<'_>, bytes: &[u8]) -> Result<()> {
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(pipe)?.st_mode);
    if kind != rustix::fs::FileType::Fifo {
        return Err(Errno::INVAL);
    }
    rustix::fs::fcntl_setfl(pipe, OFlags::NONBLOCK)?;
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, bytes.len());
    whole(rustix::io::write(pipe, bytes)?, bytes)
}

/// Sends bytes over a connected socket, without waiting. `EAGAIN` if they do not fit.
pub fn fill_socket(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<()> {
    whole(net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?, bytes)
}

fn whole(written: usize, bytes: &[u8]) -> Result<()> {
    if written == bytes.len() { Ok(()) } else { Err(Errno::AGAIN) }
}

/// The inode numbers of connected Unix sockets of this network namespace, and of their peers (`sock_diag(7)`). `ENOENT` without
/// the kernel's module `unix_diag`.
pub fn unix_peers() -> Result<HashMap<u64, u64>> {
    const DUMP_REQUEST: u16 = 0x301;
    const BY_FAMILY: u16 = 20;
    const SHOW_PEER: u32 = 4;
    const PEER: u16 = 2;
    const DONE: u16 = 3;
    const FAILED: u16 = 2;
    const HEADER: usize = 16;
    /// `struct unix_diag_msg`
    const ABOUT: usize = 16;
    let flags = SocketFlags::CLOEXEC;
    let socket =
        net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
    // `struct nlmsghdr`, then `struct unix_diag_req`: family, states, inode, parts of the answer, a cookie.
    let words = [
        40,
        u32::from(BY_FAMILY) | u32::from(DUMP_REQUEST) << 16,
        1,
        0,
        1,
        !0,
        0,
        SHOW_PEER,
        !0,
        !0,
    ];
    let request: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    net::send(&socket, &request, SendFlags::empty())?;
    let mut peers = HashMap::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (len, _) = net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..len];
        while let Some((message, kind, next)) = first_message(rest) {
            rest = next;
            match kind {
                DONE => return Ok(peers),
                FAILED => {
                    let errno = word(message, HEADER).map(|negated| -(negated.cast_signed()));
                    return Err(errno.map_or(Errno::IO, Errno::from_raw_os_error));
                }
                _ => {}
            }
            let Some(about) = message.get(HEADER..) else { continue };
            let Some(inode) = word(about, 4) else { continue };
            let mut attributes = about.get(ABOUT..).unwrap_or_default();
            while let (Some(len), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
                if kind == PEER
                    && let Some(peer) = word(attributes, 4)
                {
                    peers.insert(u64::from(inode), u64::from(peer));
                }
                let next = usize::from(len).max(4).next_multiple_of(4);
                attributes = attributes.get(next..).unwrap_or_default();
            }
        }
    }
}

/// A message, its kind, and the bytes behind it.
fn first_message(bytes: &[u8]) -> Option<(&[u8], u16, &[u8])> {
    let len = word(bytes, 0)? as usize;
    let message = bytes.get(..len.max(8))?;
    let next = bytes.get(len.max(8).next_multiple_of(4)..).unwrap_or_default();
    Some((message, half(bytes, 4)?, next))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::AsFd;

    fn path(descriptor: &impl AsRawFd) -> std::path::PathBuf {
        format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into()
    }

    #[test]
    fn a_pair_of_sockets_is_one_of_peers() {
        let (one, other) = UnixStream::pair().unwrap();
        let inode = |socket: &UnixStream| std::fs::metadata(path(socket)).unwrap().ino();
        match unix_peers() {
            Err(Errno::NOENT) => println!("SKIPPED: unix_diag: the kernel's module is not here"),
            peers => assert_eq!(peers.unwrap().get(&inode(&one)), Some(&inode(&other))),
        }
        assert_eq!(waiting_in_socket(one.as_fd()), Ok(Vec::new()));
        fill_socket(other.as_fd(), b"bytes").unwrap();
        assert_eq!(waiting_in_socket(one.as_fd()), Ok(b"bytes".to_vec()));
        assert_eq!(waiting_in_socket(one.as_fd()), Ok(b"bytes".to_vec()));
        assert_eq!(fill_pipe(one.as_fd(), b"bytes"), Err(Errno::INVAL));
    }

    #[test]
    fn a_pipe_keeps_its_bytes_and_another_gets_them() {
        let pipes =
            [pipe_with(PipeFlags::CLOEXEC).unwrap(), pipe_with(PipeFlags::CLOEXEC).unwrap()];
        assert_eq!(waiting_in_pipe(&path(&pipes[0].0)), Ok(Vec::new()));
        rustix::io::write(&pipes[0].1, b"a few bytes").unwrap();
        let waiting = waiting_in_pipe(&path(&pipes[0].0)).unwrap();
        fill_pipe(pipes[1].1.as_fd(), &waiting).unwrap();
        for (read, _) in &pipes {
            let mut buffer = [0; 32];
            assert_eq!(rustix::io::read(read, &mut buffer), Ok(11));
            assert_eq!(&buffer[..11], b"a few bytes");
        }
    }
}

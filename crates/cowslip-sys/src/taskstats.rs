//! How long each thread of the machine had waited by the time it ended (taskstats,
//! `Documentation/accounting/taskstats.rst`).
//!
//! A thread's record is sent before a waiter can learn of the end of its process. It arrives over generic netlink
//! (`genetlink(7)`), and only at listeners with `CAP_NET_ADMIN` in the initial user and PID namespaces.

use core::time::Duration;
use std::fs;

use rustix::io::retry_on_intr;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt,
};

use crate::{Errno, OwnedFd, Result};

/// `struct nlmsghdr` and `struct genlmsghdr`, which precede the attributes of a message.
const HEADERS_BYTES: usize = 16 + 4;
/// `struct nlattr`.
const ATTRIBUTE_BYTES: usize = 4;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
/// The type of an answer that is an error number, possibly 0.
const ANSWER: u16 = 2;
/// `GENL_ID_CTRL` with its command and attributes that name a family.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `TASKSTATS_CMD_GET` with its attributes that name processors.
const GET: u8 = 1;
const REGISTER: u16 = 3;
const DEREGISTER: u16 = 4;
/// `TASKSTATS_TYPE_AGGR_PID`: a thread's number and its record.
const OF_THREAD: u16 = 4;
const RECORD: u16 = 3;

/// Offsets in `struct taskstats` of the fields read here; later versions add to its end.
const PROCESSOR_WAIT_AT: usize = 24;
const DISK_WAIT_AT: usize = 40;
const THREAD_AT: usize = 128;
const PARENT_AT: usize = 132;
/// Since version 12 (Linux 5.19).
const PROCESS_AT: usize = 368;

/// Room for the records of some ten thousand threads between two looks.
const QUEUE_BYTES: usize = 16 << 20;
/// Longer than any message: two records and their headers.
const MESSAGE_BYTES: usize = 8 << 10;

/// A thread that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its number; for the first thread, that of the process.
    pub thread: u32,
    /// The number of its process.
    pub process: u32,
    /// The number of the process's parent.
    pub parent: u32,
    /// How long it was ready to run but did not run.
    pub processor_wait: Duration,
    /// How long it waited for a disk; zero unless `kernel.task_delayacct` was set before it began.
    pub disk_wait: Duration,
}

/// Receives the records of all threads that end.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    family: u16,
    processors: String,
}

impl Listener {
    /// Begins to listen. `EPERM` without the privilege, `EINVAL` in another namespace, `ENOENT` if the kernel has no
    /// such family, `EOPNOTSUPP` before Linux 5.19, where records do not name the process.
    pub fn start() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = (AddressFamily::NETLINK, SocketType::RAW, Some(netlink::GENERIC));
        let socket = net::socket_with(kind.0, kind.1, flags, kind.2)?;
        // A failure is ignored: without the privilege there is nothing to receive either.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES);
        let processors = fs::read_to_string("/sys/devices/system/cpu/possible")
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let processors = processors.trim().to_owned() + "\0";
        let mut listener = Self { socket, family: CONTROL, processors };
        let family = listener.ask(GET_FAMILY, FAMILY_NAME, b"TASKSTATS\0")?;
        listener.family = family.ok_or(Errno::PROTO)?;
        listener.ask(GET, REGISTER, listener.processors.as_bytes())?;
        // The record of a thread of our own shows which fields this kernel sends.
        let own = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let own = own.join().map_err(|_| Errno::AGAIN)?;
        let mut is_told = false;
        while !is_told {
            match listener.drain(|ended| is_told |= ended.thread == own) {
                Ok(()) if !is_told => return Err(Errno::OPNOTSUPP),
                _ => {}
            }
        }
        Ok(listener)
    }

    /// Hands over all threads that have ended by now. `ENOBUFS`: more have ended since the last call than the queue
    /// holds, and some records are lost.
    pub fn drain(&self, mut each: impl FnMut(Ended)) -> Result<()> {
        let mut message = [0; MESSAGE_BYTES];
        loop {
            match self.receive(&mut message) {
                Ok((kind, attributes)) if kind == self.family => {
                    for (_, inner) in all(attributes).filter(|(kind, _)| *kind == OF_THREAD) {
                        let record = all(inner).find(|(kind, _)| *kind == RECORD);
                        if let Some(ended) = record.and_then(|(_, record)| parse(record)) {
                            each(ended);
                        }
                    }
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a request with one attribute and takes the answers, which arrive at once; returns the number of a family
    /// if one came.
    fn ask(&self, command: u8, attribute: u16, value: &[u8]) -> Result<Option<u16>> {
        let mut message = vec![0; HEADERS_BYTES];
        message.extend(((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message[4..6].copy_from_slice(&self.family.to_ne_bytes());
        message[6..8].copy_from_slice(&(REQUEST | ACKNOWLEDGE).to_ne_bytes());
        message[16..18].copy_from_slice(&[command, 1]);
        retry_on_intr(|| net::send(&self.socket, &message, SendFlags::empty()))?;
        let mut answer = [0; MESSAGE_BYTES];
        let mut family = None;
        loop {
            match self.receive(&mut answer)? {
                // The error number takes the place of the second header.
                (ANSWER, _) => {
                    return match i32::from_ne_bytes(bytes_at(&answer, 16).ok_or(Errno::PROTO)?) {
                        0 => Ok(family),
                        number => Err(Errno::from_raw_os_error(-number)),
                    };
                }
                (CONTROL, attributes) => {
                    let id = all(attributes).find(|(kind, _)| *kind == FAMILY_ID);
                    family = id.and_then(|(_, id)| Some(u16::from_ne_bytes(bytes_at(id, 0)?)));
                }
                _ => {}
            }
        }
    }

    /// The type of the next message, and its attributes. `EAGAIN`: there is none.
    fn receive<'a>(&self, message: &'a mut [u8]) -> Result<(u16, &'a [u8])> {
        let (size, _) =
            retry_on_intr(|| net::recv(&self.socket, &mut *message, RecvFlags::empty()))?;
        let kind = u16::from_ne_bytes(bytes_at(message, 4).ok_or(Errno::PROTO)?);
        Ok((kind, message.get(HEADERS_BYTES..size).unwrap_or_default()))
    }
}

impl Drop for Listener {
    /// Deregisters: the kernel would keep sending to the number of the closed socket, which another
    /// may have by then.
    fn drop(&mut self) {
        let _ = self.ask(GET, DEREGISTER, self.processors.as_bytes());
    }
}

fn parse(record: &[u8]) -> Option<Ended> {
    let number = |at| Some(u32::from_ne_bytes(bytes_at(record, at)?));
    let time = |at| Some(Duration::from_nanos(u64::from_ne_bytes(bytes_at(record, at)?)));
    Some(Ended {
        thread: number(THREAD_AT)?,
        process: number(PROCESS_AT)?,
        parent: number(PARENT_AT)?,
        processor_wait: time(PROCESSOR_WAIT_AT)?,
        disk_wait: time(DISK_WAIT_AT)?,
    })
}

/// The attributes in `bytes`, each with its type; a truncated one ends them.
fn all(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes_at(bytes, 0)?));
        let kind = u16::from_ne_bytes(bytes_at(bytes, 2)?);
        let value = bytes.get(ATTRIBUTE_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

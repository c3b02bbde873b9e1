//! Sockets of a copy.
//!
//! | of the program | in the copy |
//! | --- | --- |
//! | a pair, both ends its own | a new pair |
//! | a connection | closed by the other side |
//! | one that listens, or receives datagrams | in a network of its own: at the same address; else at a port of loopback |
//! | one that cannot be made | closed by the other side |
//! | another | a new one |

use std::collections::{HashMap, HashSet};

use cowslip_sys::shared_queue::{self, SocketKind};
use cowslip_sys::target::Target;
use cowslip_sys::{AsFd, Errno, Result};
use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, IP_FREEBIND, IPPROTO_IP, IPPROTO_IPV6, IPV6_FREEBIND,
    IPV6_V6ONLY, SO_REUSEADDR, SO_REUSEPORT, SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET, SYS_bind,
    SYS_close, SYS_getsockname, SYS_getsockopt, SYS_listen, SYS_setsockopt, SYS_socket,
    SYS_socketpair,
};

use super::caller::Caller;
use super::files::{OpenFile, Surroundings, open_files, renew_sets, set_nonblocking, take_numbers};
use crate::descriptors::DescriptorState;

/// The longest address: `struct sockaddr_storage`.
const ADDRESS_BYTES: usize = 128;
const BACKLOG: u64 = 1024;

/// The place of an address, behind its length.
const ADDRESS_AT: usize = 16;

/// The makers of new sockets.
pub(super) struct Sockets<'a> {
    /// Has the old ones.
    holder: &'a Target,
    /// The other ends of Unix sockets, by inode.
    peers: HashMap<u64, u64>,
    /// Two that their other side has closed, for all connections: one that blocks, and one that does not.
    closed: [Option<u64>; 2],
}

impl<'a> Sockets<'a> {
    pub(super) fn new(holder: &'a Target, files: &[OpenFile<'_>]) -> Result<Self> {
        let has_any = files.iter().any(|file| file.link.starts_with("socket:"));
        let peers = if has_any { shared_queue::unix_peers()? } else { HashMap::new() };
        Ok(Self { holder, peers, closed: [None; 2] })
    }

    /// Makes a socket anew.
    pub(super) fn renew(
        &mut self,
        copy: &mut Caller<'_>,
        file: &OpenFile<'_>,
        files: &[OpenFile<'_>],
        around: &Surroundings<'_>,
    ) -> Result<()> {
        let inode = |file: &OpenFile<'_>| file.inode("socket");
        let other = inode(file).and_then(|inode| self.peers.get(&inode));
        // A standard stream is not its own any more.
        let other = files
            .iter()
            .find(|end| other.is_some() && inode(end).as_ref() == other && end.first() > 2);
        let old = self.holder.descriptor(file.first())?;
        let kind = Kind(SocketKind::new(old.as_fd())?);
        drop(old);
        if let Some(other) = other {
            // The later end of a pair has been renewed with the first.
            if other.first() < file.first() {
                return Ok(());
            }
            let [one, second] = kind.pair(copy)?;
            for (from, to) in [(second, file), (one, other)] {
                if let Some(waiting) = around.queues.get(&to.link).filter(|bytes| !bytes.is_empty())
                {
                    let from = around.process.descriptor(from as i32)?;
                    shared_queue::fill_socket(from.as_fd(), waiting)?;
                }
            }
            for (new, end) in [(one, file), (second, other)] {
                set_nonblocking(copy, new, end)?;
                take_numbers(copy, new, end)?;
                copy.call(SYS_close, &[new])?;
            }
            return Ok(());
        }
        match kind.anew(copy, file.first() as u64, around.has_own_network) {
            Err(Errno::SRCH) => Err(Errno::SRCH),
            Ok(Some(new)) => {
                set_nonblocking(copy, new, file)?;
                take_numbers(copy, new, file)?;
                copy.call(SYS_close, &[new]).map(drop)
            }
            // A connection, or the copy cannot have its kind or its address.
            Ok(None) | Err(_) => {
                let closed = self.closed(copy, file)?;
                take_numbers(copy, closed, file)
            }
        }
    }

    /// A socket that is closed by its other side, for one of any kind.
    fn closed(&mut self, copy: &mut Caller<'_>, file: &OpenFile<'_>) -> Result<u64> {
        let place = usize::from(file.nonblocking() != 0);
        if let Some(known) = self.closed[place] {
            return Ok(known);
        }
        let [domain, kind] = [AF_UNIX, SOCK_STREAM].map(|number| number as u64);
        let [one, second] = pair(copy, [domain, kind, 0])?;
        copy.call(SYS_close, &[second])?;
        set_nonblocking(copy, one, file)?;
        self.closed[place] = Some(one);
        Ok(one)
    }

    /// Closes what only the maker needs.
    pub(super) fn finish(self, copy: &mut Caller<'_>) -> Result<()> {
        self.closed
            .into_iter()
            .flatten()
            .try_for_each(|closed| copy.call(SYS_close, &[closed]).map(drop))
    }
}

/// Gives a holder, in the place of its Unix connections to other processes, one that its other side has closed. A socket for
/// datagrams that is connected to a name, as of a log, can be connected again. Sets of files have the new ones.
pub(crate) fn close_outside(
    task: &mut Caller<'_>,
    holder: &Target,
    states: &[DescriptorState],
) -> Result<()> {
    let files = open_files(holder, states)?;
    let mut sockets = Sockets::new(holder, &files)?;
    let inodes: HashSet<u64> = files.iter().filter_map(|file| file.inode("socket")).collect();
    let mut has_closed = false;
    for file in &files {
        let peer = file.inode("socket").and_then(|inode| sockets.peers.get(&inode));
        if peer.is_none_or(|peer| inodes.contains(peer)) {
            continue;
        }
        let old = holder.descriptor(file.first())?;
        if SocketKind::new(old.as_fd())?.kind != SOCK_DGRAM {
            let closed = sockets.closed(task, file)?;
            take_numbers(task, closed, file)?;
            has_closed = true;
        }
    }
    sockets.finish(task)?;
    if has_closed { renew_sets(task, &files) } else { Ok(()) }
}

/// A new pair, for these arguments of `socket(2)`.
fn pair(copy: &mut Caller<'_>, [domain, kind, protocol]: [u64; 3]) -> Result<[u64; 2]> {
    let place = copy.place(0);
    copy.call(SYS_socketpair, &[domain, kind, protocol, place])?;
    copy.get_pair()
}

/// The kind of a socket that is made.
struct Kind(SocketKind);

impl Kind {
    /// A new one; `None` for a connection.
    fn anew(&self, copy: &mut Caller<'_>, old: u64, has_own_network: bool) -> Result<Option<u64>> {
        if self.0.listens || self.receives() {
            self.bound(copy, old, has_own_network).map(Some)
        } else if self.0.domain != AF_NETLINK && self.0.is_connected {
            Ok(None)
        } else {
            self.fresh(copy).map(Some)
        }
    }

    fn is_internet(&self) -> bool {
        [AF_INET, AF_INET6].contains(&self.0.domain)
    }

    /// Receives datagrams at an address.
    fn receives(&self) -> bool {
        self.is_internet() && self.0.kind == SOCK_DGRAM
    }

    fn arguments(&self) -> [u64; 3] {
        [self.0.domain, self.0.kind, self.0.protocol].map(|number| number as u64)
    }

    fn fresh(&self, copy: &mut Caller<'_>) -> Result<u64> {
        copy.call(SYS_socket, &self.arguments())
    }

    fn pair(&self, copy: &mut Caller<'_>) -> Result<[u64; 2]> {
        pair(copy, self.arguments())
    }

    /// Port 0 of 127.0.0.1 or of ::1: its length, and `struct sockaddr_in` or `sockaddr_in6`.
    fn loopback(&self) -> (u64, [u8; 28]) {
        let mut address = [0; 28];
        address[..2].copy_from_slice(&(self.0.domain as u16).to_ne_bytes());
        if self.0.domain == AF_INET {
            address[4..8].copy_from_slice(&[127, 0, 0, 1]);
            (16, address)
        } else {
            address[23] = 1;
            (28, address)
        }
    }

    /// A socket like an old one that is bound. In the program's own network it cannot have the same address: it gets another,
    /// where no client looks for it.
    fn bound(&self, copy: &mut Caller<'_>, old: u64, has_own_network: bool) -> Result<u64> {
        let new = self.fresh(copy)?;
        if self.is_internet() && has_own_network {
            for name in [SO_REUSEADDR, SO_REUSEPORT] {
                inherit(copy, old, new, SOL_SOCKET, name)?;
            }
            if self.0.domain == AF_INET6 {
                inherit(copy, old, new, IPPROTO_IPV6, IPV6_V6ONLY)?;
                set_option(copy, new, IPPROTO_IPV6, IPV6_FREEBIND, 1)?;
            }
            // The address of an interface that the new network lacks.
            set_option(copy, new, IPPROTO_IP, IP_FREEBIND, 1)?;
            let len = address(copy, SYS_getsockname, old)?;
            bind(copy, new, len)?;
        } else if self.is_internet() && self.0.listens {
            // Any port, of this machine alone: no client looks for it.
            let (len, address) = self.loopback();
            copy.put(ADDRESS_AT, &address)?;
            bind(copy, new, len)?;
        } else if self.0.domain == AF_UNIX && self.0.listens {
            // A name alone makes the kernel choose one.
            copy.put(ADDRESS_AT, &(AF_UNIX as u16).to_ne_bytes())?;
            bind(copy, new, 2)?;
        }
        if self.0.listens {
            copy.call(SYS_listen, &[new, BACKLOG])?;
        }
        Ok(new)
    }
}

fn bind(copy: &mut Caller<'_>, socket: u64, len: u64) -> Result<()> {
    let place = copy.place(ADDRESS_AT);
    copy.call(SYS_bind, &[socket, place, len]).map(drop)
}

/// Writes an address of a socket to its place; returns the length.
fn address(copy: &mut Caller<'_>, call: libc::c_long, socket: u64) -> Result<u64> {
    let place = copy.put(0, &(ADDRESS_BYTES as u32).to_ne_bytes())?;
    let address = copy.place(ADDRESS_AT);
    copy.call(call, &[socket, address, place])?;
    Ok(u32::from_ne_bytes(copy.get(0)?).into())
}

fn option(copy: &mut Caller<'_>, socket: u64, level: i32, name: i32) -> Result<i32> {
    let len = copy.put(8, &4_u32.to_ne_bytes())?;
    let place = copy.put(0, &[0; 4])?;
    copy.call(SYS_getsockopt, &[socket, level as u64, name as u64, place, len])?;
    copy.get(0).map(i32::from_ne_bytes)
}

fn set_option(copy: &mut Caller<'_>, socket: u64, level: i32, name: i32, value: i32) -> Result<()> {
    let place = copy.put(0, &value.to_ne_bytes())?;
    copy.call(SYS_setsockopt, &[socket, level as u64, name as u64, place, 4]).map(drop)
}

fn inherit(copy: &mut Caller<'_>, old: u64, new: u64, level: i32, name: i32) -> Result<()> {
    let value = option(copy, old, level, name)?;
    set_option(copy, new, level, name, value)
}

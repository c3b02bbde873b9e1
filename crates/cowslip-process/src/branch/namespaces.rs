//! The namespaces of a copy: thread numbers of its own, and, if asked for, a network.

use std::fs;

use cowslip_sys::Errno;
use cowslip_sys::error::{During, Error, Result};
use cowslip_sys::ptrace::Tracee;
use cowslip_sys::target::Target;
use libc::{
    CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_VM, IFF_RUNNING, IFF_UP,
    MS_PRIVATE, MS_REC, SIOCSIFFLAGS, SOCK_DGRAM, SYS_capset, SYS_clone, SYS_close, SYS_ioctl,
    SYS_mount, SYS_socket, SYS_unshare,
};

use super::caller::Caller;
use crate::look::field;

/// Starts the first process of a new PID namespace. It shares the holder's memory, and never runs. Without the right to make
/// the other namespaces it is in one of users, too, in which the program's user is the only one.
pub(super) fn start_first(holder: &mut Caller<'_>, users: Option<Users>) -> Result<Tracee> {
    let user = if users.is_some() { CLONE_NEWUSER } else { 0 };
    let flags = (CLONE_VM | CLONE_NEWPID | user) as u64;
    let first = holder.start(SYS_clone, &[flags]).map_err(refused)?;
    if let Some(users) = users {
        users.map(first.thread()).during("map the users of a namespace")?;
    }
    Ok(first)
}

fn refused(errno: Errno) -> Error {
    let error = Error::from_errno("make a PID namespace", errno);
    match errno {
        Errno::PERM | Errno::NOSPC | Errno::USERS => error.advise(
            "run as root, or see user.max_user_namespaces and kernel.unprivileged_userns_clone",
        ),
        _ => error,
    }
}

/// The user and the group of a program. A namespace that its user owns must have no other user: its owner may become any that
/// is mapped, root too.
#[derive(Clone, Copy)]
pub(super) struct Users {
    user: u32,
    group: u32,
}

impl Users {
    /// The program's, if it needs a namespace of users to make others. `EPERM` if it has several, as a setuid program.
    pub(super) fn needed_by(target: &Target) -> Result<Option<Self>, Errno> {
        const SYS_ADMIN: u64 = 1 << 21;
        const NET_ADMIN: u64 = 1 << 12;
        const ALL: u64 = SYS_ADMIN | NET_ADMIN;
        let status = target.read_file("status")?;
        let set = u64::from_str_radix(field(&status, "CapEff"), 16);
        if set.is_ok_and(|set| set & ALL == ALL) {
            return Ok(None);
        }
        let only = |name: &str| {
            let ids = field(&status, name).split_ascii_whitespace().map(|id| id.parse().ok());
            let ids: Vec<u32> = ids.collect::<Option<_>>()?;
            ids.first().copied().filter(|first| ids.iter().all(|id| id == first))
        };
        match (only("Uid"), only("Gid")) {
            (Some(user), Some(group)) => Ok(Some(Self { user, group })),
            _ => Err(Errno::PERM),
        }
    }

    fn map(self, pid: i32) -> Result<(), Errno> {
        let write = |name: &str, text: &str| {
            fs::write(format!("/proc/{pid}/{name}"), text)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        let Self { user, group } = self;
        write("setgroups", "deny")?;
        write("uid_map", &format!("{user} {user} 1"))?;
        write("gid_map", &format!("{group} {group} 1"))
    }
}

/// Gives the copy a network of its own, with its loopback interface up.
pub(super) fn own_network(copy: &mut Caller<'_>) -> Result<()> {
    // `struct ifreq`: a name of 16 bytes, the flags.
    let mut request = [0; 40];
    request[..2].copy_from_slice(b"lo");
    request[16..18].copy_from_slice(&((IFF_UP | IFF_RUNNING) as u16).to_ne_bytes());
    let mut make = || {
        copy.call(SYS_unshare, &[CLONE_NEWNET as u64])?;
        let socket = copy.call(SYS_socket, &[libc::AF_INET as u64, SOCK_DGRAM as u64, 0])?;
        let place = copy.put(0, &request)?;
        copy.call(SYS_ioctl, &[socket, SIOCSIFFLAGS, place])?;
        copy.call(SYS_close, &[socket])
    };
    make().map(drop).during("make a network namespace")
}

/// Gives the copy mounts of its own, which are those of the program.
pub(super) fn own_mounts(copy: &mut Caller<'_>) -> Result<(), Errno> {
    copy.call(SYS_unshare, &[CLONE_NEWNS as u64])?;
    let root = copy.put(0, b"/\0")?;
    copy.call(SYS_mount, &[root, root, 0, MS_REC | MS_PRIVATE]).map(drop)
}

/// Shows the copy, which has mounts of its own, its own numbers in `/proc`. Where that is refused it has the program's `/proc`.
pub(super) fn own_proc(copy: &mut Caller<'_>) -> Result<(), Errno> {
    let kind = copy.put(8, b"proc\0")?;
    let place = copy.put(16, b"/proc\0")?;
    copy.call(SYS_mount, &[kind, place, kind]).map(drop)
}

/// Takes the capabilities of a thread away that came with a user namespace.
pub(super) fn drop_capabilities(copy: &mut Caller<'_>) -> Result<(), Errno> {
    const VERSION_3: u64 = 0x2008_0522;
    let header = copy.put_words(0, &[VERSION_3])?;
    let none = copy.put_words(8, &[0; 3])?;
    copy.call(SYS_capset, &[header, none]).map(drop)
}

#![allow(unsafe_code)]
//! A tmpfs of our own for files with huge pages, and a read-only clone of its mount.
//!
//! # Safety
//! `mount_setattr(2)` reads only the four words that it is given.

use rustix::fs::{self, Mode, OFlags};
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags};

use crate::failpoints::{self, Op};
use crate::reserved_fd::Kept;
use crate::{AsFd, AsRawFd, BorrowedFd, Errno, OwnedFd, Result, passthrough};

/// Opens an unnamed file of `len_bytes` in a tmpfs mounted for this process alone, with huge pages whatever
/// `shmem_enabled` says. Nothing appears in the mount table; the mount ends with the process and its files.
///
/// `fsopen(2)`, `fsmount(2)`, `tmpfs(5)`. The first needs `CAP_SYS_ADMIN` (else `EPERM`).
pub fn huge_file(len_bytes: u64) -> Result<OwnedFd> {
    failpoints::check(Op::MemfileOpen)?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let open = |mount: BorrowedFd<'_>| fs::openat(mount, ".", flags, Mode::RUSR | Mode::WUSR);
    let fd = match MOUNT.get() {
        Some(mount) => open(mount)?,
        None => {
            let mount = mount_huge()?;
            let fd = open(mount.as_fd())?;
            MOUNT.set(mount);
            fd
        }
    };
    fs::ftruncate(&fd, len_bytes)?;
    Ok(fd)
}

/// A descriptor of the tmpfs of [`huge_file`], for a process that confines itself and hands
/// its files out: it must be able to open files there, to read, write and truncate them, and to
/// give them a name for a moment.
///
/// # Errors
/// Those of making the read-only clone: `EPERM` without `CAP_SYS_ADMIN`; `EINVAL` before Linux 6.15, which clones no
/// mount outside of the mount table. Then there is no such tmpfs.
pub fn directory() -> Result<OwnedFd> {
    /// The numbers 0, 1 and 2 have a meaning to every program.
    const FIRST: i32 = 3;
    if MOUNT.get().is_none() {
        MOUNT.set(mount_huge()?);
    }
    clone().inspect_err(|_| close())?;
    rustix::io::fcntl_dupfd_cloexec(mount().ok_or(Errno::BADF)?, FIRST)
}

/// The mount, once there is one.
pub(crate) fn mount() -> Option<BorrowedFd<'static>> {
    MOUNT.get()
}

/// Returns true if this process has the privileges to mount for [`huge_file`]: tries the first step.
pub fn may_mount() -> bool {
    mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).is_ok()
}

/// Kept until [`close`] or the end of the process: closing a mount takes as long as the rest of making an arena,
/// because the kernel waits until no thread can be using it.
static MOUNT: Kept = Kept::none();

/// Closes the mount of [`huge_file`]; the next call makes a new one. No other thread of the process may make such
/// a call meanwhile.
pub fn close() {
    CLONE.close();
    MOUNT.close();
}

fn mount_huge() -> Result<OwnedFd> {
    let context = mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    mount::fsconfig_set_string(context.as_fd(), "huge", "always")?;
    mount::fsconfig_set_string(context.as_fd(), "size", "0")?;
    mount::fsconfig_set_string(context.as_fd(), "mode", "0700")?;
    mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A read-only clone of the mount.
static CLONE: Kept = Kept::none();

/// The read-only clone, made at the first call.
///
/// # Errors
/// `ENOENT` without a mount; `EPERM` without `CAP_SYS_ADMIN`; `EINVAL` before Linux 6.15.
pub(crate) fn clone() -> Result<BorrowedFd<'static>> {
    failpoints::check(Op::MountClone)?;
    if let Some(clone) = CLONE.get() {
        return Ok(clone);
    }
    let empty = OpenTreeFlags::AT_EMPTY_PATH;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | empty;
    let clone = mount::open_tree(mount().ok_or(Errno::NOENT)?, "", flags)?;
    make_read_only(&clone)?;
    CLONE.set(clone);
    CLONE.get().ok_or(Errno::BADF)
}

/// `mount_setattr(2)`
fn make_read_only(mount: &OwnedFd) -> Result<()> {
    const MOUNT_ATTR_RDONLY: u64 = 1;
    /// Set, clear, propagation, user namespace.
    const ATTRIBUTES: [u64; 4] = [MOUNT_ATTR_RDONLY, 0, 0, 0];
    // SAFETY: the kernel reads an empty path, and the words, of which it is told the size.
    let answer = unsafe {
        passthrough::by_number()(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            ATTRIBUTES.as_ptr(),
            size_of_val(&ATTRIBUTES),
        )
    };
    if answer == 0 { Ok(()) } else { Err(crate::errno::last()) }
}

#![allow(unsafe_code)]
//! Descriptors of files in memory for other processes, which read the files and cannot change them.
//!
//! A descriptor for reading is no border: `/proc/self/fd/N` opens its file again, for writing too.
//!
//! * A file of [`memfile::huge_tmpfs_file`] is opened on a read-only clone of the mount: opening it
//!   again for writing fails with `EROFS`.
//! * A memfd is sealed: its length stays, and no process gets a new way to write to it.
//!
//! # Safety
//! The call reads only the four words that it is given.

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::mount::{self, OpenTreeFlags};

use crate::failpoints::{self, Op};
use crate::memfile::{self, Seals};
use crate::reserved_fd::Kept;
use crate::{AsRawFd, BorrowedFd, Errno, OwnedFd, Result, passthrough, process};

/// The seals of a memfd that other processes may read.
const SEALS: Seals = Seals::SHRINK.union(Seals::GROW).union(Seals::FUTURE_WRITE);

/// A read-only clone of the mount of [`memfile::huge_tmpfs_file`].
static CLONE: Kept = Kept::none();

/// Makes the read-only clone, for a process that gives up the right to do so.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `EINVAL` before Linux 6.15, which clones no mount outside of
/// the mount table.
pub fn prepare() -> Result<()> {
    clone_of(memfile::mount().ok_or(Errno::NOENT)?).map(drop)
}

/// Closes the clone. No other thread may use it meanwhile.
pub(crate) fn close_clone() {
    CLONE.close();
}

fn clone_of(mount: BorrowedFd<'_>) -> Result<BorrowedFd<'static>> {
    failpoints::check(Op::MountClone)?;
    if let Some(clone) = CLONE.get() {
        return Ok(clone);
    }
    let empty = OpenTreeFlags::AT_EMPTY_PATH;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | empty;
    let clone = mount::open_tree(mount, "", flags)?;
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
    if answer == 0 { Ok(()) } else { Err(process::last_errno()) }
}

/// Opens a file of [`memfile::huge_tmpfs_file`] on the read-only clone of its mount. The file has a
/// name for a moment, which the kernel allows once for each.
///
/// # Errors
/// `EXDEV` for another file; `ENOENT` for one that was opened in this way before; those of
/// [`prepare`].
pub fn open_on_clone(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let mount = memfile::mount().ok_or(Errno::XDEV)?;
    let clone = clone_of(mount)?;
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    // No other thread has this name.
    let name = process::thread_id().to_string();
    fs::linkat(CWD, itself, mount, &name, AtFlags::SYMLINK_FOLLOW)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = fs::openat(clone, &name, flags, Mode::empty());
    fs::unlinkat(mount, &name, AtFlags::empty())?;
    opened
}

/// Makes sure that no process which gets `fd`, a descriptor for reading, can change the file. This
/// process keeps its writable mappings of it.
///
/// # Errors
/// `EPERM` for a file that is neither a memfd nor was opened on a read-only mount.
pub fn forbid_changes(fd: BorrowedFd<'_>) -> Result<()> {
    let is_read_only = fs::fstatvfs(fd)?.f_flag.contains(fs::StatVfsMountFlags::RDONLY);
    if is_read_only || memfile::seals(fd)?.contains(SEALS) {
        return Ok(());
    }
    // Sealing needs a descriptor for writing.
    let itself = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let writable = fs::open(itself, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    memfile::seal(rustix::fd::AsFd::as_fd(&writable), SEALS)
}

//! Descriptors of files in memory for other processes, which read the files and cannot change them.
//!
//! A descriptor for reading is no border: `/proc/self/fd/N` opens its file again, for writing too.
//!
//! * A file of [`tmpfs::huge_file`] is opened on a read-only clone of the mount: opening it
//!   again for writing fails with `EROFS`.
//! * A memfd is sealed: its length stays, and no process gets a new way to write to it.

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};

use crate::memfile::{self, Seals};
use crate::{AsRawFd, BorrowedFd, Errno, OwnedFd, Result, process, tmpfs};

/// The seals of a memfd that other processes may read.
const SEALS: Seals = Seals::SHRINK.union(Seals::GROW).union(Seals::FUTURE_WRITE);

/// Opens a file of [`tmpfs::huge_file`] on the read-only clone of its mount. The file has a
/// name for a moment, which the kernel allows once for each.
///
/// # Errors
/// `EXDEV` for another file; `ENOENT` for one that was opened in this way before; those of
/// making the clone.
pub fn open_on_clone(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let mount = tmpfs::mount().ok_or(Errno::XDEV)?;
    let clone = tmpfs::clone()?;
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

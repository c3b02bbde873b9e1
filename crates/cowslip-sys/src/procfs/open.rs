//! Opens files of `/proc`, without allocating, and reads texts of the kernel in a process that other threads fork.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::retry_on_intr;

use crate::reserved_fd::ReservedFd;
use crate::{Errno, OwnedFd, Result};

/// Opens a file of `/proc/self` for reading.
pub fn open_self(name: &str) -> Result<OwnedFd> {
    open_in(b"/proc/self/", name)
}

/// Opens a file of `/proc` for reading.
pub fn open(name: &str) -> Result<OwnedFd> {
    open_in(b"/proc/", name)
}

/// Reads a text of the kernel, in `/proc`, `/sys` or a control group. No child of another thread's fork keeps its
/// descriptor ([`ReservedFd::open`]).
///
/// # Errors
/// Those of open(2) and read(2); `EILSEQ` for a file that is no UTF-8.
pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    const STEP_BYTES: usize = 4096;
    let file = open_reserved(path.as_ref(), OFlags::RDONLY)?;
    let mut text = Vec::with_capacity(STEP_BYTES);
    while retry_on_intr(|| rustix::io::read(&file, spare_capacity(&mut text)))? > 0 {
        text.reserve(STEP_BYTES);
    }
    String::from_utf8(text).map_err(|_| Errno::ILSEQ)
}

/// Writes a setting of the kernel's, with the same care.
///
/// # Errors
/// Those of open(2) and write(2).
pub fn write_text(path: impl AsRef<Path>, text: &str) -> Result<()> {
    let file = open_reserved(path.as_ref(), OFlags::WRONLY)?;
    retry_on_intr(|| rustix::io::write(&file, text.as_bytes())).map(drop)
}

/// Allocates before it holds off forks: a thread that forks may have locked the allocator.
fn open_reserved(path: &Path, flags: OFlags) -> Result<ReservedFd> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    ReservedFd::open(|| fs::open(path.as_c_str(), flags | OFlags::CLOEXEC, Mode::empty()))
}

fn open_in(directory: &[u8], name: &str) -> Result<OwnedFd> {
    let mut path = [0u8; 64];
    let whole = directory.len() + name.len();
    let place = path.get_mut(..whole).ok_or(Errno::NAMETOOLONG)?;
    place[..directory.len()].copy_from_slice(directory);
    place[directory.len()..].copy_from_slice(name.as_bytes());
    fs::open(&*place, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

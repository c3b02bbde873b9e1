//! Opens files of `/proc`, without allocating.

use rustix::fs::{self, Mode, OFlags};

use crate::{Errno, OwnedFd, Result};

/// Opens a file of `/proc/self` for reading.
pub fn open_self(name: &str) -> Result<OwnedFd> {
    open_in(b"/proc/self/", name)
}

/// Opens a file of `/proc` for reading.
pub fn open(name: &str) -> Result<OwnedFd> {
    open_in(b"/proc/", name)
}

fn open_in(directory: &[u8], name: &str) -> Result<OwnedFd> {
    let mut path = [0u8; 64];
    let whole = directory.len() + name.len();
    let place = path.get_mut(..whole).ok_or(Errno::NAMETOOLONG)?;
    place[..directory.len()].copy_from_slice(directory);
    place[directory.len()..].copy_from_slice(name.as_bytes());
    fs::open(&*place, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

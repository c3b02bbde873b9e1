//! The identity of an open file.

use crate::{BorrowedFd, Result};

/// Returns true if `fd` refers to the same file as when it was opened, as far as `fstat(2)` can
/// tell.
pub fn same_file(fd: BorrowedFd<'_>, identity: FileIdentity) -> bool {
    FileIdentity::from_fd(fd) == Ok(identity)
}

/// Device and inode of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileIdentity {
    pub(super) device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Asks `fstat(2)`.
    pub fn from_fd(fd: BorrowedFd<'_>) -> Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns it as two numbers, for a message to another process.
    pub fn to_numbers(self) -> [u64; 2] {
        [self.device, self.inode]
    }
}

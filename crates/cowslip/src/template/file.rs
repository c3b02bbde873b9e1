//! A file of a template.

use cowslip_sys::reserved_fd::{FileIdentity, ReservedFd, same_file};
use cowslip_sys::{AsFd, BorrowedFd, Errno};

/// A descriptor that the program may have closed or replaced by another file.
#[derive(Debug)]
pub(crate) struct File {
    pub(super) fd: ReservedFd,
    pub(super) identity: FileIdentity,
}

impl File {
    pub(crate) fn new(fd: ReservedFd) -> cowslip_sys::Result<Self> {
        let identity = FileIdentity::from_fd(fd.as_fd())?;
        Ok(Self { fd, identity })
    }

    /// Its descriptor, unless the program closed it or put another file in its place (`EBADF`).
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        match same_file(self.fd.as_fd(), self.identity) {
            true => Ok(self.fd.as_fd()),
            false => Err(Errno::BADF),
        }
    }
}

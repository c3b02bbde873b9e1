#![allow(unsafe_code)]
//! Templates from other processes.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cowslip_sys::error::Result;
use cowslip_sys::{AsFd, OwnedFd, process, socket};

use super::{Template, message};
use crate::progress::{self, OnProgress, Wait};

/// A socket to a process that does not write to the memory that it sends, or may write to all of this process' memory
/// anyway.
pub(crate) struct Peer<'a>(&'a UnixStream);

impl<'a> Peer<'a> {
    /// A socket to a process of this user or of root.
    ///
    /// # Errors
    /// `PermissionDenied` for another user's process; an error of the socket.
    pub(crate) fn of_this_user(stream: &'a UnixStream) -> io::Result<Self> {
        let uid = socket::peer_uid(stream.as_fd())?;
        match uid == 0 || uid == process::effective_uid() {
            true => Ok(Self(stream)),
            false => {
                Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user listens there"))
            }
        }
    }
}

impl Template {
    /// Receives a template from the process at the other end of `socket`; the socket's time-out limits the wait.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] if something else arrives over the socket, [`crate::ErrorKind::Vanished`] if the
    /// other end was closed, or if the template and all its clones are gone.
    ///
    /// # Safety
    /// The other process sends the message of [`Self::send`]. (Everything verifiable is verified; but it cannot be
    /// verified that the process does not write to the memory that it sends.)
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use cowslip::{Arena, Place, Template, units::ByteCount};
    ///
    /// let (ours, theirs) = UnixStream::pair().unwrap();
    /// let arena = Arena::new(ByteCount::mib(4))?;
    /// let mut words = arena.slice::<u64>(512)?;
    /// words.fill(7);
    /// let template = arena.freeze()?.into_template()?;
    /// template.send(&ours)?;
    ///
    /// // In another process:
    /// // SAFETY: the process that sends is ours.
    /// let received = unsafe { Template::receive(&theirs) }?;
    /// let clone = received.map(Place::Anywhere)?;
    /// assert_eq!(clone.values::<u64>(words.range()), [7; 512]);
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub unsafe fn receive(socket: &UnixStream) -> Result<Self> {
        Self::receive_from(Peer(socket), Vec::new(), &mut |_| Ok(()))
    }

    /// Receives like [`Self::receive`], from an end that is silent for `silence` at most. While it waits, it calls
    /// `progress` some ten times a second.
    ///
    /// # Errors
    /// Those too; `ETIMEDOUT`; [`ErrorKind::Busy`](crate::ErrorKind::Busy) if `progress` broke it off.
    ///
    /// # Safety
    /// Like [`Self::receive`].
    pub unsafe fn receive_within(
        socket: &UnixStream,
        silence: Duration,
        progress: OnProgress<'_>,
    ) -> Result<Self> {
        let wait = &mut |stream: &UnixStream| progress::readable(stream, silence, progress);
        Self::receive_from(Peer(socket), Vec::new(), wait)
    }

    /// Receives a template, the descriptors of which have already arrived or arrive with it.
    pub(crate) fn receive_from(
        peer: Peer<'_>,
        files: Vec<OwnedFd>,
        wait: Wait<'_>,
    ) -> Result<Self> {
        message::receive(peer.0, files, wait).map(|base| Self { base: Arc::new(base) })
    }
}

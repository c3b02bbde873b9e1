//! Templates: many private copies of a frozen arena, in any process, reset in place.
//!
//! ```text
//!   arena R ──MAP_PRIVATE─▶ ┌────────┐ ◀─MAP_PRIVATE── clone, this process ──fork──▶ its child's
//!                           │  base  │ ◀─MAP_PRIVATE── clone, another process (SCM_RIGHTS)
//!                           └────────┘
//!   each of them ─MAP_SHARED▶ the readers' token: while anybody maps it, the base stays
//! ```
//! A clone reads the base through 2 MiB mappings and copies 4 KiB at its first write to a page. A
//! *reset* drops those copies.
//!
//! * **I2, frozen is frozen**, with readers that were not forked: a process with a template or a clone first maps the
//!   token of the base's readers ([`Pin`]), which fails if the base may already be changing, and keeps it from being
//!   thawed from then on. Children inherit the mapping; `kill -9` ends it.
//! * Descriptors in flight over a socket keep nothing: a process that receives them too late gets an error.
//! * The descriptor of the base that is sent is read-only.

mod builder;
mod clone;
mod identity;
mod layout;
mod message;
mod reset;
mod restore;
mod server;

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cowslip_sys::error::Result;
use cowslip_sys::reserved_fd::{FileIdentity, ReservedFd};
use cowslip_sys::{OwnedFd, process};

use crate::arena::Handle;
use crate::arena::readers::Pin;
use crate::attend::{self, Wait};
use crate::image::OnProgress;

pub use builder::TemplateBuilder;
pub use clone::{Place, TemplateClone};
pub use identity::Identity;
use layout::Layout;
pub use layout::{Inherit, Region};
pub use server::TemplateServer;

/// The content of an arena at one instant, for clones in this process and others.
///
/// It keeps the frozen memory unchanged: the arena continues with private copies, can be forked and, with userfaultfd,
/// frozen again, and is thawed when the template, its clones, and those in other processes are gone (within a second, if the last was
/// in another process). The arena itself may end earlier.
///
/// ```
/// use cowslip::{Arena, Place, units::ByteCount};
///
/// let arena = Arena::new(ByteCount::mib(64))?;
/// let mut table = arena.slice::<u64>(1 << 20)?;
/// table.fill(1);
/// let template = arena.freeze()?.into_template()?;
///
/// let mut clone = template.map(Place::Anywhere)?;
/// clone.slice_mut(&table)[7] = 2; // copies 4 KiB
/// assert_eq!(table[7], 1);
/// clone.reset()?; // drops them
/// assert_eq!(clone.slice(&table)[7], 1);
/// # Ok::<(), cowslip::Error>(())
/// ```
/// A copy of the value is the same template.
#[derive(Clone, Debug)]
pub struct Template {
    base: Arc<Base>,
}

/// The parts that the template and its clones in this process share.
#[derive(Debug)]
struct Base {
    pin: Pin,
    /// Read-only.
    file: File,
    /// The file of the regions that clones share, if there are any.
    shared: Option<File>,
    layout: Layout,
    /// True if the file is made of huge pages.
    is_huge: bool,
    /// Last, because its drop tells the arena that the pin is gone.
    _owner: Option<Owner>,
}

/// The arena, if this process made the template from it.
#[derive(Debug)]
struct Owner {
    arena: Weak<Handle>,
    pid: i32,
}

/// A descriptor that the program may have closed or replaced by another file.
#[derive(Debug)]
pub(crate) struct File {
    fd: ReservedFd,
    identity: FileIdentity,
}

impl Template {
    /// The regions, in order, at the arena's addresses.
    pub fn regions(&self) -> &[Region] {
        self.base.layout.regions()
    }

    /// First address of the arena that it was made from, to which [`Region`]s and [`TemplateClone::address`] refer.
    pub fn origin(&self) -> usize {
        self.base.layout.origin()
    }

    /// Makes a clone in this process.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Busy`] if the requested place is taken;
    /// [`crate::ErrorKind::OutOfMemory`] if the kernel is out of address space or mappings.
    pub fn map(&self, place: Place) -> Result<TemplateClone> {
        TemplateClone::map(Arc::clone(&self.base), place)
    }

    /// Sends the template to the process at the other end of `socket`, which calls [`Self::receive`]. It may be dropped
    /// here once the other process confirms that it has it.
    ///
    /// # Errors
    /// An error of the kernel; `EPIPE` if the other end is closed. The socket is unusable
    /// afterwards.
    pub fn send(&self, socket: &UnixStream) -> Result<()> {
        message::send(&self.base, &[], socket)
    }

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
    #[allow(unsafe_code)]
    pub unsafe fn receive(socket: &UnixStream) -> Result<Self> {
        // SAFETY: the caller makes the same promise about the other process.
        unsafe { Self::receive_rest(socket, Vec::new(), &mut |_| Ok(())) }
    }

    /// Receives like [`Self::receive`], from an end that is silent for `silence` at most. While it waits, it calls
    /// `progress` some ten times a second.
    ///
    /// # Errors
    /// Those too; `ETIMEDOUT`; [`ErrorKind::Busy`](crate::ErrorKind::Busy) if `progress` broke it off.
    ///
    /// # Safety
    /// Like [`Self::receive`].
    #[allow(unsafe_code)]
    pub unsafe fn receive_within(
        socket: &UnixStream,
        silence: Duration,
        progress: OnProgress<'_>,
    ) -> Result<Self> {
        let wait = &mut |stream: &UnixStream| attend::readable(stream, silence, progress);
        // SAFETY: the caller makes the same promise about the other process.
        unsafe { Self::receive_rest(socket, Vec::new(), wait) }
    }

    /// Sends it like [`Self::send`], after `first`, in one message.
    pub(crate) fn send_after(&self, first: &[u8], socket: &UnixStream) -> Result<()> {
        message::send(&self.base, first, socket)
    }

    /// Receives a template, the descriptors of which have already arrived or arrive with it.
    ///
    /// # Safety
    /// Like [`Self::receive`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn receive_rest(
        socket: &UnixStream,
        files: Vec<OwnedFd>,
        wait: Wait<'_>,
    ) -> Result<Self> {
        message::receive(socket, files, wait).map(|base| Self { base: Arc::new(base) })
    }
}

impl File {
    pub(crate) fn new(fd: ReservedFd) -> cowslip_sys::Result<Self> {
        let identity = FileIdentity::of(cowslip_sys::AsFd::as_fd(&fd))?;
        Ok(Self { fd, identity })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // In a child the lock may be held by a thread that does not exist.
        if self.pid != process::pid() {
            return;
        }
        if let Some(handle) = self.arena.upgrade() {
            let mut state = handle.shared.lock();
            state.thaw.delay_ns = 0;
            handle.shared.notify(&state);
        }
    }
}

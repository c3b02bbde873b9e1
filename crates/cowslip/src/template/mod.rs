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
//!   token of the base's readers ([`Pin`](crate::arena::readers::Pin)), which fails if the base may already be changing, and keeps it from being
//!   thawed from then on. Children inherit the mapping; `kill -9` ends it.
//! * Descriptors in flight over a socket keep nothing: a process that receives them too late gets an error.
//! * A process that gets a template can change nothing that others see of it, but in the regions
//!   that clones share: see [`offer`].

mod base;
mod builder;
mod clone;
mod content;
mod file;
mod identity;
mod layout;
mod message;
mod offer;
mod receive;
mod reset;
mod restore;
mod server;

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cowslip_sys::error::Result;

use base::Base;
pub use builder::TemplateBuilder;
pub use clone::{Place, TemplateClone};
pub(crate) use file::File;
pub use identity::Identity;
pub use layout::{Inherit, Region};
pub(crate) use receive::Peer;
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
    /// here once the other process confirms that it has it. The process gets one file: content that freezes in a row have
    /// left in several is gathered the first time, which copies all of it.
    ///
    /// # Errors
    /// An error of the kernel; `EPIPE` if the other end is closed. The socket is unusable
    /// afterwards.
    pub fn send(&self, socket: &UnixStream) -> Result<()> {
        message::send(&self.base, &[], socket)
    }

    /// Sends it like [`Self::send`], after `first`, in one message.
    pub(crate) fn send_after(&self, first: &[u8], socket: &UnixStream) -> Result<()> {
        message::send(&self.base, first, socket)
    }
}

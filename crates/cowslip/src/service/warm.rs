//! The huge page that the kernel gives out next.
//!
//! A host that takes free memory back makes the first touch of a huge page take ten milliseconds and more. A collapse makes
//! that touch while it has the arena's lock, and threads that use the memory wait. Free pages lie on lists of each
//! processor, the last one on top (`free_unref_page` of Linux): a page that was touched and freed a moment ago is the one
//! that a collapse takes, and then it takes one millisecond, unless the thread came to another processor in between. The
//! service thread warms it without the lock.
//!
//! The collapse itself keeps the lock: its last step maps the huge page also where a freeze or a thaw holds threads by a
//! userfaultfd without write protection (`maybe_install_pmd`), and before Linux 6.4 the file seems to hold nothing meanwhile.

use cowslip_sys::Errno;
use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use crate::mapping::OwnSpace;

/// Address space for a huge page that is touched and freed, if there was room. Used by the service thread.
#[derive(Debug)]
pub(crate) struct WarmPage(Option<OwnSpace>);

impl WarmPage {
    /// Sets the address space aside.
    pub(crate) fn reserve() -> Self {
        Self(reserve().ok())
    }

    /// Its place.
    pub(crate) fn range(&self) -> Option<VirtRange> {
        self.0.as_ref().map(|place| VirtRange::new(place.start, place.len))
    }

    /// Touches and frees a huge page. Where there is none it takes a base page, and no more of a group's limit.
    ///
    /// The touch is a store: `MADV_POPULATE_WRITE` would keep other threads from mapping memory meanwhile.
    pub(crate) fn warm(&self) {
        if let Some(place) = &self.0 {
            place.with_bytes(|bytes| bytes[0] = 1);
            let _ = place.advise(Advice::DontNeed);
        }
    }
}

fn reserve() -> Result<OwnSpace, Errno> {
    let place = OwnSpace::reserve_apart(CHUNK_BYTES, CHUNK_BYTES)?;
    place.map_anonymous(Prot::RW)?;
    // A child would have a copy.
    place.advise(Advice::DontFork)?;
    place.advise(Advice::HugePage)?;
    Ok(place)
}

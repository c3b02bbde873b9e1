//! The huge page that the kernel gives out next.
//!
//! A host that takes free memory back makes the first touch of a huge page take ten milliseconds and more. A collapse makes
//! that touch while it has the arena's lock, and threads that use the memory wait. Free pages lie on lists of each
//! processor, the last one on top (`free_unref_page` of Linux): a page that was touched and freed a moment ago is the one
//! that a collapse takes, and then it takes one millisecond. The service thread warms it without the lock.
//!
//! The collapse itself keeps the lock: its last step maps the huge page also where a freeze or a thaw holds threads by a
//! userfaultfd without write protection (`maybe_install_pmd`), and before Linux 6.4 the file seems to hold nothing meanwhile.

use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};

use crate::mapping::OwnSpace;

/// Address space for a huge page that is touched and freed, if there was room. Used by the service thread.
#[derive(Debug)]
pub(crate) struct WarmPage(Option<OwnSpace>);

impl WarmPage {
    /// Sets the address space aside.
    pub(crate) fn reserve() -> Self {
        Self(OwnSpace::reserve_apart(CHUNK_BYTES, CHUNK_BYTES).ok())
    }

    /// Touches and frees a huge page. Best effort: without it a collapse takes longer.
    pub(crate) fn warm(&self) {
        let Some(place) = self.0.as_ref().filter(|place| place.map_anonymous(Prot::RW).is_ok())
        else {
            return;
        };
        // A child would have a copy.
        let is_kept = place.advise(Advice::DontFork).is_ok();
        if is_kept && place.advise(Advice::HugePage).is_ok() {
            // One fault, which clears it all. Where there is no huge page it takes a base page, and no more of a group's limit.
            let _ = place.first(page_size_bytes()).advise(Advice::PopulateWrite);
        }
        let _ = place.map_anonymous(Prot::NONE);
    }
}

//! A freeze waits for the service thread once: `mremap` returns when that thread has read the event.
//!
//! ```text
//!   freezer  ── mremap ──┐ waits              ┌── maps privately, wakes who waits ──
//!   service              └── reads the event ─┘
//! ```
//! On two processors that is two wake-ups, each of a processor that is idle or busy with something else: 50 us
//! apiece on a virtual machine, and another thread's whole turn on a busy one. So while every access waits, both
//! threads run on one processor, before ordinary threads if the process may ask for that.

use super::flip::Flip;
use super::service::Near;
use crate::sys::scheduling::{self, Pinned};

const THIS_THREAD: i32 = 0;

/// The freezer and the service threads of its arenas, side by side until this is dropped.
pub(super) struct Handover {
    _services: Vec<Near>,
    /// Where it may not be kept, the handover takes longer.
    _freezer: Option<Pinned>,
    is_urgent: bool,
}

impl Handover {
    pub(super) fn begin(flips: &[Flip<'_>]) -> Self {
        let is_urgent =
            scheduling::is_ordinary() && scheduling::set_urgent(THIS_THREAD, true).is_ok();
        let here = scheduling::current_processor();
        let freezer = Pinned::to(THIS_THREAD, here).ok();
        let services = flips.iter().filter_map(|flip| flip.state.service.as_ref());
        let services = services.map(|service| service.bring_near(here)).collect();
        Self { _services: services, _freezer: freezer, is_urgent }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if self.is_urgent {
            let _ = scheduling::set_urgent(THIS_THREAD, false);
        }
    }
}

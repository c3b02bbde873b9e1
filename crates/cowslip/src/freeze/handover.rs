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
use super::service::{Near, Service};
use crate::sys::scheduling::{self, Processors};

const THIS_THREAD: i32 = 0;

/// The freezer and the service threads of its arenas, side by side until this is dropped.
pub(super) struct Handover {
    _services: Vec<Near>,
    /// Where the freezer runs meanwhile, and afterwards. Where it may not be kept, the handover takes longer.
    placed: Option<(Processors, Processors)>,
    is_urgent: bool,
}

impl Handover {
    pub(super) fn begin(flips: &[Flip<'_>]) -> Self {
        let is_urgent =
            scheduling::is_ordinary() && scheduling::set_urgent(THIS_THREAD, true).is_ok();
        let services: Vec<_> =
            flips.iter().filter_map(|flip| flip.state.service.as_ref()).collect();
        let here = Processors::only(scheduling::current_processor()).ok();
        let placed = here.and_then(|here| Some((here, place(here, &services)?)));
        let services = services.into_iter().map(|service| service.bring_near(here)).collect();
        Self { _services: services, placed, is_urgent }
    }
}

/// Keeps the freezer here: where it is to run afterwards.
fn place(here: Processors, services: &[&Service]) -> Option<Processors> {
    let before = Processors::of(THIS_THREAD).ok()?;
    here.assign(THIS_THREAD).ok()?;
    // Who runs wherever the others do was not restricted, and is not to be when there are more processors later.
    let is_free = services.iter().any(|service| service.processors() == Some(before));
    Some(if is_free { Processors::every() } else { before })
}

impl Drop for Handover {
    fn drop(&mut self) {
        // Or somebody else has placed it since.
        if let Some((here, after)) = self.placed
            && Processors::of(THIS_THREAD) == Ok(here)
        {
            let _ = after.assign(THIS_THREAD);
        }
        if self.is_urgent {
            let _ = scheduling::set_urgent(THIS_THREAD, false);
        }
    }
}

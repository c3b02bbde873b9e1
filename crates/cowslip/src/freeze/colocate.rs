//! A freeze waits for the service thread once: `mremap` returns when that thread has read the event.
//!
//! ```text
//!   freezer  ── mremap ──┐ waits              ┌── maps privately, wakes who waits ──
//!   service              └── reads the event ─┘
//! ```
//! On two processors that is two wake-ups, each of a processor that is idle or busy with something else: 50 us apiece
//! on a virtual machine, and another thread's whole turn on a busy one. While every access waits, both threads
//! therefore run on one processor, before ordinary threads if the process may ask for that.

use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::scheduling::{self, Processors};

use super::snapshot::Snapshot;

const THIS_THREAD: i32 = 0;

/// The freezer on one processor with the service threads of its arenas, until this is dropped. Those stay there until
/// they have something to do.
pub(super) struct Colocate {
    /// The freezer's processors before, if it was pinned here.
    before: Option<Processors>,
    is_urgent: bool,
}

impl Colocate {
    /// The caller of the freeze waits for every call made here.
    pub(super) fn begin(snapshots: &[Snapshot<'_>]) -> Self {
        let services = || snapshots.iter().filter_map(Snapshot::service);
        let is_urgent = services().any(|service| service.is_crowded.load(Relaxed))
            && scheduling::is_ordinary()
            && scheduling::set_urgent(THIS_THREAD, true).is_ok();
        let processor = scheduling::current_processor();
        let before = Processors::only(processor).ok().and_then(|here| {
            let before = Processors::of(THIS_THREAD).ok()?;
            here.assign(THIS_THREAD).ok()?;
            services().for_each(|service| service.pin_to_cpu(processor, here));
            Some(before)
        });
        Self { before, is_urgent }
    }
}

impl Drop for Colocate {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // A thread that could run wherever its group may was not restricted, and must not be when the group has
            // more processors later: the kernel remembers a set that it was given.
            let is_everywhere = Processors::every().assign(THIS_THREAD).is_ok()
                && Processors::of(THIS_THREAD) == Ok(before);
            if !is_everywhere {
                let _ = before.assign(THIS_THREAD);
            }
        }
        if self.is_urgent {
            let _ = scheduling::set_urgent(THIS_THREAD, false);
        }
    }
}

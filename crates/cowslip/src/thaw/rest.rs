//! The program's rest: the service thread leaves for a moment, and has freed memory given back.
//!
//! An allocator keeps freed memory for a while, and looks at its clock only when it is called: what a program freed
//! before it waits would stay with it. Giving it back takes the allocator's locks and touches its memory, which may lie
//! in an arena. The thread therefore is away meanwhile, and any thread of the program: no other one relies on it
//! ([`Services::current`](crate::service::Services::current)), and one that needs a service thread starts another.
//!
//! It leaves while it has the lock and nothing is frozen, so that no freeze relies on it. A fork waits until all threads
//! are back ([`lock_while_none_is_away`]), with the locks under which they leave: its child must not inherit the allocator's locks.

use std::sync::{MutexGuard, OnceLock};
use std::time::Duration;

use cowslip_sys::thread::ThreadCount;
use cowslip_sys::{process, waiting};

use crate::arena::state::{Shared, State};
use crate::arena::{Arena, io};
use crate::plan;
use crate::plan::settings::rest::{LONGEST_AWAY_NS, NAP_NS};
use crate::service::Service;
use crate::timing::Deadline;

static GIVES_BACK: OnceLock<fn()> = OnceLock::new();

/// The threads that are away.
static AWAY: ThreadCount = ThreadCount::new();

/// Has `gives_back` called while the program rests.
pub(crate) fn call(gives_back: fn()) {
    let _ = GIVES_BACK.set(gives_back);
}

/// Locks all of `arenas` for a fork, none of which is held, while no thread is away and may hold locks of the program.
pub(crate) fn lock_while_none_is_away<'a>(arenas: &[&'a Arena]) -> Vec<MutexGuard<'a, State>> {
    let mut states = io::lock_released(arenas);
    let until = Deadline::after_ns(LONGEST_AWAY_NS);
    while AWAY.get() > 0 && !until.has_passed() {
        drop(states);
        let _ = waiting::nap(Duration::from_nanos(NAP_NS));
        states = io::lock_released(arenas);
    }
    states
}

/// Returns true if a thread is away, as far as a caller with the arenas' locks can know.
pub(crate) fn is_any_away() -> bool {
    AWAY.get() > 0
}

/// The time, and the processor time of this process.
fn times() -> (u64, u64) {
    (process::now_ns(), process::cpu_ns())
}

/// The program's rest, as the service thread sees it.
#[derive(Debug)]
pub(super) struct Rest(plan::rest::Rest);

impl Rest {
    pub(super) fn new() -> Self {
        let (now_ns, used_ns) = times();
        Self(plan::rest::Rest::new(now_ns, used_ns))
    }

    /// Time until the next look.
    pub(super) fn patience(&self) -> Option<Duration> {
        GIVES_BACK.get().map(|_| Duration::from_nanos(self.0.left_ns(process::now_ns())))
    }

    fn is_due(&mut self) -> bool {
        self.0.is_due(process::now_ns(), process::cpu_ns)
    }

    /// Gives back memory if it is time for that. False if this is no longer the arena's service thread.
    pub(super) fn spend(&mut self, service: &Service, shared: &Shared) -> bool {
        let Some(gives_back) = GIVES_BACK.get().filter(|_| self.is_due()) else { return true };
        {
            let Some(state) = shared.try_lock() else { return true };
            if state.not_live() > 0 || !state.retired_views.is_empty() {
                return true;
            }
            AWAY.add();
            service.set_away(true);
        }
        service.set_urgent(false);
        gives_back();
        let locked = shared.lock();
        let is_current = shared.services.is_running(service);
        service.set_away(!is_current);
        drop(locked);
        AWAY.remove();
        let (now_ns, used_ns) = times();
        self.0.gave_back(now_ns, used_ns);
        is_current
    }
}

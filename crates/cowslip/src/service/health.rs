//! The health of the service thread: a freeze relies on it to read the event of each move.
//!
//! ```text
//!   freezer, holding the lock                        service thread that cannot go on
//!   moves = true                                     failed = true
//!   failed? then not this way                        has the lock, or moves? then the userfaultfd goes
//!   mremap … mremap: each waits for the event        (which releases each mremap, and each waiting thread)
//!   moves = false
//!   failed? then all is live again, and without userfaultfd
//!   maps privately, wakes
//! ```
//! Each side writes its word before it reads the other's, so that one of them sees the other. The userfaultfd therefore
//! never goes while a freeze maps, or another thread thaws: both hold the lock. If it goes while a freeze moves, the
//! mapping under the moved pages is still a shared one of the file, and live: the freeze has failed, and nothing else
//! has (I4).

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cowslip_sys::Errno;

/// State by which a freeze and the service thread see each other.
#[derive(Debug, Default)]
pub(crate) struct ServiceHealth {
    has_failed: AtomicBool,
    moves: AtomicBool,
}

impl ServiceHealth {
    /// True if no freeze may rely on the service thread, now or later.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(SeqCst)
    }

    /// Notes that a freeze relies on it from here on; `NODEV` if none may.
    pub(crate) fn begin_moves(&self) -> Result<(), Errno> {
        self.moves.store(true, SeqCst);
        self.check()
    }

    /// Notes that nothing waits for an event any more; `NODEV` if the userfaultfd may have gone meanwhile.
    pub(crate) fn end_moves(&self) -> Result<(), Errno> {
        self.moves.store(false, SeqCst);
        self.check()
    }

    fn check(&self) -> Result<(), Errno> {
        if self.has_failed() { Err(Errno::NODEV) } else { Ok(()) }
    }

    /// Called by the service thread, before it ends or stops reading events for any other reason.
    pub(crate) fn set_failed(&self) {
        self.has_failed.store(true, SeqCst);
    }

    /// True if a freeze waits for events that will not be read.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.moves.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn a_failed_service_is_seen_or_sees_that_it_is_waited_for() {
        for _ in 0..2_000 {
            let (health, start) = (ServiceHealth::default(), Barrier::new(2));
            let relied = std::thread::scope(|scope| {
                let service = scope.spawn(|| {
                    start.wait();
                    health.set_failed();
                    health.is_waited_for()
                });
                start.wait();
                let began = health.begin_moves().is_ok();
                let is_let_go = service.join().unwrap();
                assert!(!began || is_let_go, "a freeze waits for a failed service");
                began
            });
            assert!(health.end_moves().is_err() || !relied);
        }
    }
}

//! Tells whether the service thread can be relied on to read the event that a freeze waits for.
//!
//! ```text
//!   freezer, holding the lock                        service thread that cannot go on
//!   moves = true                                     blind = true
//!   blind? then not this way                         has the lock, or moves? then the userfaultfd goes
//!   mremap … mremap: each waits for the event        (which lets each mremap return, and who waits for a fault)
//!   moves = false
//!   blind? then all is live again, and without userfaultfd
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
pub(crate) struct Sight {
    is_blind: AtomicBool,
    moves: AtomicBool,
}

impl Sight {
    /// True if no freeze may rely on the service thread, now or later.
    pub(crate) fn is_blind(&self) -> bool {
        self.is_blind.load(SeqCst)
    }

    /// Notes that a freeze relies on it from here on; `NODEV` if none may.
    pub(crate) fn begin_moves(&self) -> Result<(), Errno> {
        self.moves.store(true, SeqCst);
        self.see()
    }

    /// Notes that nothing waits for an event any more; `NODEV` if the userfaultfd may have gone meanwhile.
    pub(crate) fn end_moves(&self) -> Result<(), Errno> {
        self.moves.store(false, SeqCst);
        self.see()
    }

    fn see(&self) -> Result<(), Errno> {
        if self.is_blind() { Err(Errno::NODEV) } else { Ok(()) }
    }

    /// Called by the service thread, before it ends or stops reading events for any other reason.
    pub(crate) fn go_blind(&self) {
        self.is_blind.store(true, SeqCst);
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
    fn who_goes_blind_is_seen_or_sees_that_it_is_waited_for() {
        for _ in 0..2_000 {
            let (sight, start) = (Sight::default(), Barrier::new(2));
            let relied = std::thread::scope(|scope| {
                let service = scope.spawn(|| {
                    start.wait();
                    sight.go_blind();
                    sight.is_waited_for()
                });
                start.wait();
                let began = sight.begin_moves().is_ok();
                let is_let_go = service.join().unwrap();
                assert!(!began || is_let_go, "a freeze that waits for nobody");
                began
            });
            assert!(sight.end_moves().is_err() || !relied);
        }
    }
}

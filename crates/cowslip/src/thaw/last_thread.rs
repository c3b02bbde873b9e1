//! The end of a program's last thread: the service thread alone must not keep the process alive.
//!
//! Without its main thread a process goes on as long as it has another (`pthread_exit(3)`). No call waits for that thread's
//! end alone, so the service thread looks now and then, and more often once the main thread has ended. libc does the rest:
//! the last thread that it knows of calls `exit(3)`, unless one before it ended by a system call of its own.

use std::time::Duration;

use cowslip_sys::procfs::own;
use cowslip_sys::thread;

use crate::plan::settings::last_thread::{ENDED, LOOK_NS};
use crate::timing::Deadline;

/// Knowledge of the program's threads.
#[derive(Debug)]
pub(super) struct LastThread {
    due: Deadline,
    /// Time from one look to the next.
    pause_ns: u64,
}

impl LastThread {
    pub(super) fn new() -> Self {
        Self { due: Deadline::after_ns(LOOK_NS), pause_ns: LOOK_NS }
    }

    /// Time until the next look.
    pub(super) fn patience(&self) -> Duration {
        self.due.left()
    }

    /// True if the program had no thread any more at the last look.
    pub(super) fn is_over(&mut self) -> bool {
        if !self.due.has_passed() {
            return false;
        }
        let threads = own::threads_without_main();
        self.pause_ns = match threads {
            None => LOOK_NS,
            Some(_) if self.pause_ns == LOOK_NS => ENDED.first_ns,
            Some(_) => (2 * self.pause_ns).min(ENDED.last_ns),
        };
        self.due = Deadline::after_ns(self.pause_ns);
        threads.is_some_and(|threads| threads == thread::ours())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_over_while_the_main_thread_lives() {
        let mut last = LastThread { due: Deadline::after_ns(0), pause_ns: ENDED.first_ns };
        assert_eq!(last.patience(), Duration::ZERO);
        assert!(!last.is_over());
        assert!(last.patience() > Duration::ZERO && last.pause_ns == LOOK_NS);
    }
}

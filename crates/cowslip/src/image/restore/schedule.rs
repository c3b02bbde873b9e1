//! The state of a restore: the plan, the threads that wait for its progress, and the first error.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cowslip_sys::error::Error;
use cowslip_sys::units::CHUNK_BYTES;

use super::plan::Plan;
use crate::image::Progress;

#[derive(Debug)]
pub(super) struct RestoreSchedule {
    plan: Mutex<Plan>,
    moved: Condvar,
    error: Mutex<Option<Error>>,
    closing: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl RestoreSchedule {
    pub(super) fn new(plan: Plan) -> Self {
        let (moved, error, closing) = (Condvar::new(), Mutex::new(None), AtomicBool::new(false));
        Self { plan: Mutex::new(plan), moved, error, closing }
    }

    /// Changes the plan, and wakes all threads that wait for a change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Plan) -> T) -> T {
        let answer = change(&mut locked(&self.plan));
        self.moved.notify_all();
        answer
    }

    pub(super) fn claim_wanted(&self) -> Option<u32> {
        locked(&self.plan).claim_wanted()
    }

    /// Waits until `claim` has a chunk to bring in; `None` if there will be none.
    pub(super) fn claim(&self, claim: impl Fn(&mut Plan) -> Option<u32>) -> Option<u32> {
        let mut plan = locked(&self.plan);
        loop {
            if self.is_closing() || plan.left() == 0 {
                return None;
            }
            if let Some(chunk) = claim(&mut plan) {
                return Some(chunk);
            }
            plan = self.moved.wait(plan).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Claims the next chunk, without waiting.
    pub(super) fn claim_now(&self) -> Option<u32> {
        locked(&self.plan).claim()
    }

    /// Wanted chunks that were not named before.
    pub(super) fn newly_wanted(&self) -> Vec<u32> {
        locked(&self.plan).newly_wanted()
    }

    /// Ends all claiming.
    pub(super) fn close(&self) {
        let plan = locked(&self.plan);
        self.closing.store(true, Relaxed);
        drop(plan);
        self.moved.notify_all();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Chunks that are not in yet.
    pub(super) fn left(&self) -> usize {
        locked(&self.plan).left()
    }

    pub(super) fn progress(&self) -> Progress {
        progress(&locked(&self.plan))
    }

    /// Waits until the plan has moved on from `seen`, is done, or is closed; returns the progress.
    pub(super) fn wait_moved(&self, seen: Progress, patience: Duration) -> Progress {
        let deadline = Instant::now() + patience;
        let mut plan = locked(&self.plan);
        loop {
            let now = progress(&plan);
            let left = deadline.saturating_duration_since(Instant::now());
            if now != seen || plan.left() == 0 || left.is_zero() || self.is_closing() {
                return now;
            }
            let waited = self.moved.wait_timeout(plan, left);
            plan = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    /// Keeps the first error.
    pub(super) fn failed(&self, error: &Error) {
        locked(&self.error).get_or_insert_with(|| error.clone());
    }

    /// The first error.
    pub(super) fn error(&self) -> Option<Error> {
        locked(&self.error).clone()
    }
}

fn progress(plan: &Plan) -> Progress {
    let bytes = |chunks: usize| (chunks * CHUNK_BYTES) as u64;
    Progress { done_bytes: bytes(plan.total() - plan.left()), total_bytes: bytes(plan.total()) }
}

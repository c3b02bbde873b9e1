//! The state of a restore: the plan, the threads that wait for its progress, and the first error.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cowslip_sys::error::Error;
use cowslip_sys::units::CHUNK_BYTES;

use super::plan::Plan;
use super::source::Source;
use crate::image::{OnArrival, Progress};

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

    /// Waits for a chunk to bring in; `None` if there will be none.
    fn claim(&self) -> Option<u32> {
        let mut plan = locked(&self.plan);
        loop {
            if self.is_closing() || plan.left() == 0 {
                return None;
            }
            if let Some(chunk) = plan.claim() {
                return Some(chunk);
            }
            plan = self.moved.wait(plan).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Like [`Self::claim`], for chunks that arrive from elsewhere, in the order of arrival: a thread never waits for
    /// one while others are ready. Names the chunks that come next to `source`.
    fn claim_arrived(&self, source: &Source, most_ahead: usize) -> Option<u32> {
        let mut plan = locked(&self.plan);
        loop {
            if self.is_closing() || plan.left() == 0 {
                return None;
            }
            source.need_now(&plan.newly_wanted());
            source.will_need(&plan.name_ahead(most_ahead));
            if let Some(chunk) = plan.claim_ready(|chunk| source.is_ready(chunk)) {
                return Some(chunk);
            }
            plan = self.moved.wait(plan).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Calls `bring_in` with one chunk after the other, until there are none, or it breaks off.
    pub(super) fn each(&self, source: &Source, mut bring_in: impl FnMut(u32) -> ControlFlow<()>) {
        let most_ahead = source.image.has_arrivals().then(|| source.image.prefetch_chunks());
        loop {
            let claimed = match most_ahead {
                Some(most) => self.claim_arrived(source, most),
                None => self.claim(),
            };
            if claimed.is_none_or(|chunk| bring_in(chunk).is_break()) {
                return;
            }
        }
    }

    /// Wakes the threads that wait in [`Self::each`] whenever bytes have arrived, as long as the result lives.
    pub(super) fn listen(self: &Arc<Self>, source: &Source) -> Arc<OnArrival> {
        let schedule = Arc::clone(self);
        let listener: Arc<OnArrival> = Arc::new(move || schedule.change(|_| ()));
        source.image.subscribe(&listener);
        listener
    }

    /// Fetches newly wanted chunks at once, if they come from elsewhere.
    pub(super) fn need_now(&self, source: &Source) {
        let wanted = locked(&self.plan).newly_wanted();
        source.need_now(&wanted);
    }

    /// Like [`Self::claim`], without waiting.
    pub(super) fn claim_now(&self) -> Option<u32> {
        locked(&self.plan).claim()
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

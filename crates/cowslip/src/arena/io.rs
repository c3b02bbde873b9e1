//! Memory that a device reads or writes by itself.
//!
//! `O_DIRECT`, io_uring's fixed buffers, RDMA: the kernel looks up once which page frames are behind an address, and
//! the device then works on those. A freeze puts other frames behind the address at the first write, and a thaw copies
//! their content and frees them: later writes of the device are lost, or show in a view. A library cannot notice such
//! I/O. The program that starts it therefore says so, and freezes and thaws wait until it has ended:
//!
//! ```text
//!   hold ───▶ I/O ───▶ release          hold … release      (a new hold comes after who waits, within reason)
//!     freeze, fork, thaw ── wait ──▶ go on
//! ```

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::process;
use cowslip_sys::units::VirtRange;

use super::state::{Shared, State};
use super::{Arena, Handle};
use crate::plan::settings::freeze::COURTESY_NS;

const OPERATION: &str = "hold memory for I/O";

/// While this lives, no freeze, fork or thaw changes the page frames of an arena's memory: see [`Arena::hold_for_io`].
#[must_use = "memory is held until this is dropped"]
#[derive(Debug)]
pub struct IoGuard {
    handle: Arc<Handle>,
    range: VirtRange,
    /// The holder: a child that was forked without our knowledge has no hold.
    pid: i32,
}

impl Arena {
    /// Makes freezes and thaws of this arena wait until the guard is dropped, for a device that reads or writes `range`
    /// by itself (`O_DIRECT`, io_uring, AIO, RDMA). Threads go on reading and writing.
    ///
    /// Meanwhile [`Self::freeze`] is [`ErrorKind::Busy`], [`Self::freeze_timeout`] waits, and so does a
    /// [fork](crate::fork), as long as it takes: a thread that forks while it has the only guard waits for ever.
    /// Buffers that are registered with a ring must be held until they are unregistered.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if `range` is not of this arena.
    ///
    /// ```
    /// use std::fs::{self, OpenOptions};
    /// use std::os::unix::fs::{FileExt, OpenOptionsExt};
    ///
    /// use cowslip::{Arena, ErrorKind, units::ByteCount};
    ///
    /// let path = std::env::temp_dir().join(format!("cowslip-direct-{}", std::process::id()));
    /// fs::write(&path, [7; 8192])?;
    /// let arena = Arena::new(ByteCount::mib(4))?;
    /// let mut buffer = arena.slice::<u8>(8192)?;
    ///
    /// // Not every file system has it.
    /// let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    /// let file = direct.or_else(|_| fs::File::open(&path))?;
    /// let held = arena.hold_for_io(buffer.range())?;
    /// file.read_exact_at(&mut buffer, 0)?;
    /// assert_eq!(arena.freeze().unwrap_err().kind(), ErrorKind::Busy);
    /// drop(held);
    ///
    /// assert_eq!(arena.freeze()?.slice(&buffer), [7; 8192]);
    /// # fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hold_for_io(&self, range: VirtRange) -> Result<IoGuard> {
        let shared = self.shared();
        if !shared.range.covers(range) {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .on(range)
                .because("it is not all in this arena"));
        }
        // A thaw finishes its chunk before it releases the lock.
        let mut state = shared.lock();
        let until = Instant::now() + Duration::from_nanos(COURTESY_NS);
        while state.io.awaited > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        state.io.now += 1;
        Ok(IoGuard { handle: Arc::clone(&self.handle), range, pid: process::pid() })
    }
}

impl IoGuard {
    /// The range that it was asked to hold.
    pub fn range(&self) -> VirtRange {
        self.range
    }
}

impl Drop for IoGuard {
    fn drop(&mut self) {
        if self.pid != process::pid() {
            return;
        }
        let shared = &self.handle.shared;
        let mut state = shared.lock();
        state.io.now -= 1;
        if !state.io.any() {
            shared.changed.notify_all();
            // There may be something to thaw.
            shared.notify(&state);
        }
    }
}

/// Makes new holds of these arenas wait, for a moment, until this is dropped.
pub(crate) struct Await<'a>(Vec<&'a Shared>);

impl<'a> Await<'a> {
    /// Waits until none of `arenas` is held, or the deadline has passed. New holds may come afterwards: callers look
    /// again once they have the locks.
    pub(crate) fn released(arenas: &[&'a Arena], deadline: Option<Instant>) -> Self {
        let mut awaited = Self(Vec::new());
        for shared in arenas.iter().map(|arena| arena.shared()) {
            let mut state = shared.lock();
            state.io.awaited += 1;
            awaited.0.push(shared);
            while state.io.any() {
                let left =
                    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                // A wait without a deadline looks now and then all the same.
                let left = left.unwrap_or(Duration::from_secs(1));
                if left.is_zero() {
                    break;
                }
                let waited = shared.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            }
        }
        awaited
    }
}

impl Drop for Await<'_> {
    fn drop(&mut self) {
        for shared in &self.0 {
            let mut state = shared.lock();
            state.io.awaited -= 1;
            if state.io.awaited == 0 {
                shared.changed.notify_all();
            }
        }
    }
}

/// Locks all of `arenas`, none of which is held, in this order.
pub(crate) fn lock_released<'a>(arenas: &[&'a Arena]) -> Vec<MutexGuard<'a, State>> {
    let lock = || arenas.iter().map(|arena| arena.shared().lock()).collect::<Vec<_>>();
    let mut states = lock();
    while states.iter().any(|state| state.io.any()) {
        // Without the locks: the holder of one may need another to go on.
        drop(states);
        let mut turn = Await::released(arenas, None);
        states = lock();
        // Here, since dropping it would wait for the locks.
        turn.0.clear();
        states.iter_mut().for_each(|state| state.io.awaited -= 1);
    }
    states
}

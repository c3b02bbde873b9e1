//! Counters shared by all threads of a process.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Me;
use crate::program::Call;
use crate::shared::{COUNTERS, shared};
use crate::sys;
use crate::words::PAGE;

/// The address of the counters, each on its own page, in the program's memory.
static AT: AtomicUsize = AtomicUsize::new(0);
/// Their expected values when all threads have ended.
static SUMS: [AtomicU64; COUNTERS] = [const { AtomicU64::new(0) }; COUNTERS];

fn counter(index: usize) -> &'static AtomicU64 {
    let at = AT.load(Ordering::Relaxed) + index % COUNTERS * PAGE;
    // SAFETY: `make_counters` maps it permanently, and it is only used as a counter.
    unsafe { &*(at as *const AtomicU64) }
}

pub(super) fn make_counters(me: &Me) {
    let at = sys::mmap(0, 64 * PAGE, libc::PROT_READ | libc::PROT_WRITE, 0);
    let at = at.unwrap_or_else(|errno| me.fail(&format!("mmap: errno {errno}")));
    AT.store(at, Ordering::Relaxed);
}

/// The values before a fork: no child may have less.
pub(super) fn counters() -> [u64; COUNTERS] {
    core::array::from_fn(|index| counter(index).load(Ordering::SeqCst))
}

/// In a child: its values must be between those before the fork and those intended.
pub(super) fn inherit_counters(me: &Me, parent: usize, least: &[u64; COUNTERS]) {
    for (index, sum) in SUMS.iter().enumerate() {
        let found = counter(index).load(Ordering::SeqCst);
        let most = shared().intended[parent][index].load(Ordering::SeqCst);
        if found < least[index] || found > most {
            let least = least[index];
            me.fail(&format!("counter {index} is {found} at the fork, not {least} to {most}"));
        }
        sum.store(found, Ordering::SeqCst);
        shared().intended[me.process][index].store(found, Ordering::SeqCst);
    }
}

pub(super) fn check_counters(me: &Me) {
    for (index, sum) in SUMS.iter().enumerate() {
        let (found, right) = (counter(index).load(Ordering::SeqCst), sum.load(Ordering::SeqCst));
        if found != right {
            me.fail(&format!("counter {index} is {found} instead of {right}"));
        }
    }
}

impl Me {
    pub(super) fn count(&mut self, call: &Call) -> Option<()> {
        let (index, times) = (call.number(0) % COUNTERS, call.number(1));
        shared().intended[self.process][index].fetch_add(times as u64, Ordering::SeqCst);
        for _ in 0..times {
            counter(index).fetch_add(1, Ordering::SeqCst);
        }
        SUMS[index].fetch_add(times as u64, Ordering::SeqCst);
        Some(())
    }
}

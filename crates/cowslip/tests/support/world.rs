//! Two arenas that threads write to, and the conditions that hold for them whatever a system call returns.

use std::sync::atomic::Ordering::Relaxed;

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ArenaSlice, Error, Frozen, Prot, freeze_all};
use cowslip_sys::Errno;

use super::{Counters, PATIENCE, Writers, checksum, eventually, fork_child, pattern, status_of};

/// Arenas with several protections, and their writers.
pub struct World {
    pub first: Arena,
    pub second: Arena,
    pub counters: [Counters; 2],
    writers: Vec<Writers>,
    patterned: ArenaSlice<u64>,
    guard: VirtRange,
}

impl World {
    pub fn new() -> Self {
        let first = Arena::new(ByteCount::mib(16)).expect("an arena");
        let second = Arena::new(ByteCount::mib(8)).expect("an arena");
        let counters =
            [Counters::new(&first, ByteCount::mib(2)), Counters::new(&second, ByteCount::mib(1))];
        let mut patterned = first.slice::<u64>(2 * CHUNK_BYTES / 8).expect("memory");
        patterned.iter_mut().enumerate().for_each(|(i, value)| *value = pattern(i));
        let page = page_size_bytes();
        let part = |chunks: usize, pages: usize| {
            VirtRange::new(patterned.range().start + chunks * CHUNK_BYTES + pages * page, page)
        };
        let (guard, constant) = (part(0, 77), part(1, 3));
        #[allow(unsafe_code)]
        // SAFETY: `check` avoids the guard until it is readable again, and no thread writes there.
        unsafe {
            first.protect(guard, Prot::NONE).expect("a guard page");
            first.protect(constant, Prot::READ).expect("a constant page");
        }
        let writers = counters.iter().map(|counters| Writers::start(counters, 1)).collect();
        Self { first, second, counters, writers, patterned, guard }
    }

    pub fn arenas(&self) -> [&Arena; 2] {
        [&self.second, &self.first]
    }

    fn guarded(&self) -> std::ops::Range<usize> {
        let first = (self.guard.start - self.patterned.range().start) / 8;
        first..first + self.guard.len / 8
    }

    fn is_pattern(&self, values: &[u64]) -> bool {
        let guarded = self.guarded();
        let mut places = values.iter().enumerate().filter(|(i, _)| !guarded.contains(i));
        places.all(|(i, &value)| value == pattern(i))
    }

    /// Waits until the writers have written since now.
    pub fn wait_written(&self) {
        for counters in &self.counters {
            let before = counters.sum();
            eventually("the writers write", || counters.sum() > before + 1000);
        }
    }

    /// Checks the result of a freeze: a view that shows one moment, or an error with a reason.
    pub fn judge(&self, answer: cowslip::Result<Vec<Frozen>>) {
        match answer {
            Ok(views) => {
                assert!(self.is_pattern(views[1].slice(&self.patterned)));
                let sums = || {
                    let second = checksum(views[0].slice(self.counters[1].slice()));
                    (checksum(views[1].slice(self.counters[0].slice())), second)
                };
                assert_eq!(sums(), sums(), "the views do not change");
            }
            Err(error) => explains_itself(&error),
        }
    }

    /// A child sees one moment of both arenas, and its writes stay its own.
    pub fn fork(&self) -> Result<(), Error> {
        let pid = fork_child(&self.arenas(), || {
            let sums = || {
                let sum = |counters: &Counters| checksum(counters.slice());
                (sum(&self.counters[0]), sum(&self.counters[1]))
            };
            let before = sums();
            let same = self.is_pattern(&self.patterned) && before == sums();
            for counters in &self.counters {
                (0..counters.len())
                    .step_by(700)
                    .for_each(|i| counters.at(i).store(1 << 60, Relaxed));
            }
            same && before != sums()
        })?;
        assert_eq!(status_of(pid), 0, "the child's memory is whole");
        Ok(())
    }

    /// Checks that nothing was lost or changed, no thread hangs, and everything works again.
    pub fn check(self) {
        assert!(self.is_pattern(&self.patterned));
        let live = self.arenas().map(|arena| arena.wait_live(PATIENCE));
        assert_eq!(live, [true; 2], "live again: {:?}", self.first.metrics());
        self.judge(freeze_all(&self.arenas()));
        self.fork().expect("a fork, without a fault");
        assert_eq!(self.arenas().map(|arena| arena.wait_live(PATIENCE)), [true; 2]);
        for (writers, counters) in self.writers.into_iter().zip(&self.counters) {
            let written = writers.stop();
            assert_eq!(counters.sum(), written, "every update is there");
        }
        #[allow(unsafe_code)]
        // SAFETY: it was writable before it was guarded.
        unsafe { self.first.protect(self.guard, Prot::RW) }.expect("the guard is lifted");
        let all_right = self.patterned.iter().enumerate().all(|(i, &value)| value == pattern(i));
        assert!(all_right, "what the guard hid too");
    }
}

/// Checks that the text names the operation, and the kernel's reason.
pub fn explains_itself(error: &Error) {
    let text = error.to_string();
    let errno = error.errno().expect("an errno");
    let reason = cowslip_sys::reason(Errno::from_raw_os_error(errno));
    assert!(text.contains(reason), "{text:?} says {reason:?}");
    assert!(text.find(reason) > Some(3), "{text:?} says what failed");
}

//! The write load: one thread that does `SET` after `SET` and times each.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use cowslip_report::Latencies;

use super::table::{Table, compose, key_of};

/// Width of a bucket of the latency series.
const BUCKET: Duration = Duration::from_millis(10);

/// The saver's activity while the writer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Phase {
    Quiet,
    Saving,
    Aftermath,
    End,
}

/// State shared by the writer and the saver.
#[derive(Debug)]
pub(crate) struct Shared {
    phase: AtomicU64,
    begun: AtomicU64,
    completed: AtomicU64,
}

impl Shared {
    pub(crate) fn new(sets: u64) -> Self {
        Self { phase: AtomicU64::new(0), begun: sets.into(), completed: sets.into() }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u64, Relaxed);
    }

    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Acquire)
    }

    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Acquire)
    }
}

/// The writer's observations.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) quiet: Latencies,
    /// Latencies of the requests under way during the save.
    pub(crate) during: Latencies,
    /// The longest latency in ns of the requests begun in each 10 ms.
    peaks_ns: Vec<u64>,
}

impl Log {
    fn new() -> Self {
        let peaks_ns = Vec::with_capacity(1 << 12);
        Self { quiet: Latencies::new(), during: Latencies::new(), peaks_ns }
    }

    /// Seconds since the writer began, and nanoseconds.
    pub(crate) fn peaks(&self) -> impl Iterator<Item = (f64, f64)> {
        let seconds = |bucket| bucket as f64 * BUCKET.as_secs_f64();
        self.peaks_ns.iter().enumerate().map(move |(bucket, &ns)| (seconds(bucket), ns as f64))
    }

    fn record(&mut self, (before, after): (u64, u64), at: Duration, latency: Duration) {
        let (quiet, saving) = (Phase::Quiet as u64, Phase::Saving as u64);
        if after == quiet {
            self.quiet.record(latency);
        } else if before <= saving {
            self.during.record(latency);
        }
        let bucket = (at.as_nanos() / BUCKET.as_nanos()) as usize;
        if self.peaks_ns.len() <= bucket {
            self.peaks_ns.resize(bucket + 1, 0);
        }
        let peak = &mut self.peaks_ns[bucket];
        *peak = (*peak).max(latency.as_nanos() as u64);
    }
}

/// Runs `body` while a thread writes, until the body has returned.
pub(crate) fn under_load<T>(
    table: Table<'_>,
    shared: &Shared,
    body: impl FnOnce() -> T,
) -> (T, Log) {
    thread::scope(|scope| {
        let ender = Ender(shared);
        let writer = scope.spawn(|| write(table, shared));
        let result = body();
        drop(ender);
        (result, writer.join().expect("the writer panicked"))
    })
}

fn write(table: Table<'_>, shared: &Shared) -> Log {
    let mut log = Log::new();
    let clock = Instant::now();
    for sequence in shared.completed() + 1.. {
        let before = shared.phase.load(Relaxed);
        if before == Phase::End as u64 {
            break;
        }
        let slot = compose(key_of(sequence, table.keys()), sequence);
        let began = Instant::now();
        shared.begun.store(sequence, Release);
        table.set(&slot);
        shared.completed.store(sequence, Release);
        let latency = began.elapsed();
        let after = shared.phase.load(Relaxed);
        log.record((before, after), began - clock, latency);
    }
    log
}

/// Ends the load, even if the body panics.
struct Ender<'a>(&'a Shared);

impl Drop for Ender<'_> {
    fn drop(&mut self) {
        self.0.enter(Phase::End);
    }
}

//! Writes of a thread while memory comes back to huge pages after a fork, by Cowslip's thaw and by `MADV_COLLAPSE`: the
//! time of each write, the total of the long ones, and lost updates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::report::{Latencies, Row};
use cowslip::units::ByteCount;

use super::{Bench, Options, WRITTEN_PERCENT, mix};
use crate::error::Result;
use crate::host::warm;
use crate::mechanisms::{Forking, FreezingFork, Mechanism, MechanismKind, Pages};
use crate::memory::Memory;

pub(super) const METRIC: &str = "huge_recovery_write";
/// Time of all writes that took longer than [`SHORTEST_STALL`], a recovery. Unlike a percentile it does not become
/// better if the recovery takes longer.
pub(super) const STALLED: &str = "huge_recovery_writer_stalled";
pub(super) const LOST: &str = "lost_updates";

const SHORTEST_STALL: Duration = Duration::from_micros(1);
const LEAST_CYCLES: u32 = 3;
const MOST_CYCLES: u32 = 10;

/// State shared by the writer and the thread that forks.
#[derive(Default)]
struct Talk {
    increments: AtomicU64,
    recovering: AtomicBool,
    finished: AtomicBool,
}

/// Ends the writer on each exit path.
struct Finish<'a>(&'a Talk);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.finished.store(true, Relaxed);
    }
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    let mut cowslip = FreezingFork::new(bytes)?;
    let memory = cowslip.shared_memory();
    measure_one(bench, MechanismKind::CowslipFork, &mut cowslip, &memory, 0.5)?;
    drop((memory, cowslip));
    let mut forking = Forking::new(bytes, Pages::Huge)?;
    let memory = forking.shared_memory();
    measure_one(bench, MechanismKind::ForkThp, &mut forking, &memory, 1.0)
}

fn measure_one(
    bench: &mut Bench<'_>,
    kind: MechanismKind,
    mechanism: &mut dyn Mechanism,
    writing: &Arc<Memory>,
    share: f64,
) -> Result<()> {
    bench.progress.phase(&format!("writes while huge pages come back: {}", kind.name()));
    writing.touch(bench.stop)?;
    let before = sum(writing);
    let talk = Talk::default();
    let (written, cycles) = thread::scope(|scope| {
        let writer = scope.spawn(|| write(writing, &talk));
        let finish = Finish(&talk);
        let cycled = cycle(mechanism, &talk, bench, share);
        drop(finish);
        let written = writer.join().expect("the writer does not panic");
        cycled.map(|cycles| (written, cycles))
    })?;
    let counted = sum(writing) - before;
    let increments = talk.increments.load(Relaxed);
    let size = writing.bytes() as u64;
    written.latencies.push(bench.report, kind.name(), METRIC, Some(size), None);
    let stalled_ns = written.stalled.as_nanos() as f64 / f64::from(cycles.max(1));
    let row = Row::new(kind.name(), STALLED, "mean", stalled_ns, "ns").size_bytes(size);
    bench.report.row(row.n(u64::from(cycles)));
    let row = Row::new(kind.name(), LOST, "value", increments.abs_diff(counted) as f64, "count");
    bench.report.row(row.size_bytes(size).n(increments));
    Ok(())
}

/// The sum of all words that are written.
fn sum(memory: &Memory) -> u64 {
    (0..memory.pages()).map(|page| memory.page(page).load(Relaxed)).sum()
}

fn cycle(mechanism: &mut dyn Mechanism, talk: &Talk, bench: &Bench<'_>, share: f64) -> Result<u32> {
    let mut cycles = 0;
    let pages = mechanism.memory().pages() as u64;
    let bytes = ByteCount(mechanism.memory().bytes() as u64);
    for cycle in bench.clock.rounds(share, LEAST_CYCLES, MOST_CYCLES) {
        bench.progress.set(u64::from(cycle), u64::from(MOST_CYCLES));
        bench.stop.check()?;
        // Memory for the copies, and for the new huge pages.
        warm(bytes, bench.stop)?;
        mechanism.snapshot()?;
        let enough = talk.increments.load(Relaxed) + pages * WRITTEN_PERCENT / 100;
        while talk.increments.load(Relaxed) < enough {
            thread::sleep(Duration::from_millis(1));
        }
        talk.recovering.store(true, Relaxed);
        let recovered = mechanism.release().and_then(|()| mechanism.renew());
        talk.recovering.store(false, Relaxed);
        recovered?;
        cycles += 1;
    }
    Ok(cycles)
}

/// The writer's observations while huge pages came back.
struct Written {
    latencies: Latencies,
    stalled: Duration,
}

/// Increments words of random pages, and returns its observations while huge pages come back.
fn write(memory: &Memory, talk: &Talk) -> Written {
    let mut written = Written { latencies: Latencies::new(), stalled: Duration::ZERO };
    let pages = memory.pages() as u64;
    for n in 0.. {
        if talk.finished.load(Relaxed) {
            break;
        }
        let word = memory.page((mix(n) % pages) as usize);
        let recovering = talk.recovering.load(Relaxed);
        let began = Instant::now();
        word.fetch_add(1, Relaxed);
        let took = began.elapsed();
        if recovering {
            written.latencies.record(took);
            if took > SHORTEST_STALL {
                written.stalled += took;
            }
        }
        talk.increments.store(n + 1, Relaxed);
    }
    written
}

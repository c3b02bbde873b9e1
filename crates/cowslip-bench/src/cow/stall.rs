//! What a thread that keeps writing sees while memory comes back to huge pages after a fork, by Cowslip's thaw and by
//! `MADV_COLLAPSE`: how long each write takes, and that none is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use cowslip::units::ByteCount;
use cowslip_report::{Latencies, Row};

use super::{Bench, Options, WRITTEN_PERCENT, mix};
use crate::error::Result;
use crate::host::warm;
use crate::mechanisms::{Forking, FreezingFork, Mechanism, MechanismKind, Pages};
use crate::memory::Memory;

pub(super) const METRIC: &str = "huge_recovery_writer_stall";
pub(super) const LOST: &str = "lost_updates";

const LEAST_CYCLES: u32 = 3;
const MOST_CYCLES: u32 = 10;

/// What the writer and the thread that forks tell each other.
#[derive(Default)]
struct Talk {
    increments: AtomicU64,
    recovering: AtomicBool,
    finished: AtomicBool,
}

/// Has the writer end on every way out.
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
    let latencies = thread::scope(|scope| {
        let writer = scope.spawn(|| write(writing, &talk));
        let finish = Finish(&talk);
        let cycled = cycle(mechanism, &talk, bench, share);
        drop(finish);
        let latencies = writer.join().expect("the writer does not panic");
        cycled.map(|()| latencies)
    })?;
    let counted = sum(writing) - before;
    let increments = talk.increments.load(Relaxed);
    let size = writing.bytes() as u64;
    latencies.push(bench.report, kind.name(), METRIC, Some(size), None);
    let row = Row::new(kind.name(), LOST, "value", increments.abs_diff(counted) as f64, "count");
    bench.report.row(row.size_bytes(size).n(increments));
    Ok(())
}

/// Of all words that are written.
fn sum(memory: &Memory) -> u64 {
    (0..memory.pages()).map(|page| memory.page(page).load(Relaxed)).sum()
}

fn cycle(mechanism: &mut dyn Mechanism, talk: &Talk, bench: &Bench<'_>, share: f64) -> Result<()> {
    let pages = mechanism.memory().pages() as u64;
    let bytes = ByteCount(mechanism.memory().bytes() as u64);
    for cycle in bench.clock.rounds(share, LEAST_CYCLES, MOST_CYCLES) {
        bench.progress.set(u64::from(cycle), u64::from(MOST_CYCLES));
        bench.stop.check()?;
        mechanism.snapshot()?;
        let enough = talk.increments.load(Relaxed) + pages * WRITTEN_PERCENT / 100;
        while talk.increments.load(Relaxed) < enough {
            thread::sleep(Duration::from_millis(1));
        }
        // What is copied, and what huge pages are made of.
        warm(bytes, bench.stop)?;
        talk.recovering.store(true, Relaxed);
        let recovered = mechanism.release().and_then(|()| mechanism.renew());
        talk.recovering.store(false, Relaxed);
        recovered?;
    }
    Ok(())
}

/// Increments words of random pages; the latencies of those while huge pages come back.
fn write(memory: &Memory, talk: &Talk) -> Latencies {
    let mut latencies = Latencies::new();
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
            latencies.record(took);
        }
        talk.increments.store(n + 1, Relaxed);
    }
    latencies
}

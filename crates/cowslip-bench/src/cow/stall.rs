//! What a thread that keeps writing sees of a thaw: how long each write takes, and that none is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use cowslip_report::{Latencies, Row};

use super::{Bench, Options, WRITTEN_PERCENT, mix};
use crate::error::Result;
use crate::memory::{Memory, warm_free};
use crate::rivals::{Freezing, Kind, Rival};

pub(super) const METRIC: &str = "thaw_writer_stall";
pub(super) const LOST: &str = "lost_updates";

const CYCLES: u64 = 10;

/// What the writer and the thread that freezes tell each other.
#[derive(Default)]
struct Talk {
    increments: AtomicU64,
    thawing: AtomicBool,
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
    bench.progress.phase("writes during a thaw");
    let mut cowslip = Freezing::new(bytes)?;
    let writing = cowslip.shared_memory();
    cowslip.memory().touch(bench.stop)?;
    let before = sum(&writing);
    let talk = Talk::default();
    let latencies = thread::scope(|scope| {
        let writer = scope.spawn(|| write(&writing, &talk));
        let finish = Finish(&talk);
        let cycled = cycle(&mut cowslip, &talk, bench);
        drop(finish);
        let latencies = writer.join().expect("the writer does not panic");
        cycled.map(|()| latencies)
    })?;
    let counted = sum(&writing) - before;
    let increments = talk.increments.load(Relaxed);

    let rival = Kind::Cowslip.rival();
    latencies.push(bench.report, rival, METRIC, Some(bytes as u64), None);
    let row = Row::new(rival, LOST, "value", increments.abs_diff(counted) as f64, "count");
    bench.report.row(row.size_bytes(bytes as u64).n(increments));
    Ok(())
}

/// Of all words that are written.
fn sum(memory: &Memory) -> u64 {
    (0..memory.pages()).map(|page| memory.page(page).load(Relaxed)).sum()
}

fn cycle(cowslip: &mut Freezing, talk: &Talk, bench: &Bench<'_>) -> Result<()> {
    let pages = cowslip.memory().pages() as u64;
    for cycle in 0..CYCLES {
        bench.progress.set(cycle, CYCLES);
        bench.stop.check()?;
        warm_free(cowslip.memory().bytes() / 100 * WRITTEN_PERCENT as usize, bench.stop)?;
        cowslip.snapshot()?;
        let enough = talk.increments.load(Relaxed) + pages * WRITTEN_PERCENT / 100;
        while talk.increments.load(Relaxed) < enough {
            thread::sleep(Duration::from_millis(1));
        }
        talk.thawing.store(true, Relaxed);
        let released = cowslip.release();
        talk.thawing.store(false, Relaxed);
        released?;
    }
    Ok(())
}

/// Increments words of random pages; the latencies of those during a thaw.
fn write(memory: &Memory, talk: &Talk) -> Latencies {
    let mut latencies = Latencies::new();
    let pages = memory.pages() as u64;
    for n in 0.. {
        if talk.finished.load(Relaxed) {
            break;
        }
        let word = memory.page((mix(n) % pages) as usize);
        let thawing = talk.thawing.load(Relaxed);
        let began = Instant::now();
        word.fetch_add(1, Relaxed);
        let took = began.elapsed();
        if thawing {
            latencies.record(took);
        }
        talk.increments.store(n + 1, Relaxed);
    }
    latencies
}

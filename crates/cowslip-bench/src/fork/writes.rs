//! What the parent's writes cost after a fork.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use cowslip_report::{Latencies, Report, Row};

use super::{Bench, MIB, Options};
use crate::error::Result;
use crate::field::Field;
use crate::memory::{Memory, warm_free};
use crate::rivals::Kind;
use crate::rows::push_durations;

/// To every page, in order.
const EVERY: &str = "write_every_page";
/// The mean of a million, most of them to pages that were written before.
pub(super) const RANDOM: &str = "random_write_mean";

const KINDS: [Kind; 4] = [Kind::Fork4k, Kind::CowslipFork, Kind::ForkThp, Kind::UffdWp4k];
const BYTES: u64 = 512 * MIB;
const RANDOM_WRITES: u64 = 1_000_000;
const ROUNDS: u32 = 5;

#[derive(Default)]
struct Log {
    every: Option<Latencies>,
    random: Vec<f64>,
}

/// The memory that is written.
pub(super) fn size_bytes(options: &Options) -> u64 {
    (options.working_bytes() as u64).min(BYTES)
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = size_bytes(options) as usize;
    bench.progress.phase("writes after a fork: filling the rivals' memory");
    let mut field = Field::open(bench, &KINDS, RANDOM, bytes, Log::default)?;
    // The first round is to warm up.
    for round in 0..=ROUNDS {
        bench.progress.phase(&format!("writes after a fork: round {round} of {ROUNDS}"));
        field.each(bench, |lane, stop| {
            for write in [write_every_page, write_at_random] {
                lane.rival.renew()?;
                lane.rival.memory().touch(stop)?;
                warm_free(bytes, stop)?;
                lane.rival.snapshot()?;
                let mut log = Log::default();
                write(lane.rival.memory(), &mut log);
                lane.rival.release()?;
                if round > 0 {
                    lane.log.random.extend(log.random);
                    if let Some(every) = log.every {
                        lane.log.every.get_or_insert_with(Latencies::new).merge(&every);
                    }
                }
            }
            Ok(())
        })?;
    }
    for (kind, log) in field.finish() {
        let size = bytes as u64;
        if let Some(every) = log.every {
            every.push(bench.report, kind.rival(), EVERY, Some(size), None);
        }
        let row = Row::new(kind.rival(), RANDOM, "", 0.0, "ns").size_bytes(size);
        push_durations(bench.report, &row, &log.random);
    }
    Ok(())
}

fn write_every_page(memory: &Memory, log: &mut Log) {
    let mut latencies = Latencies::new();
    for page in 0..memory.pages() {
        let began = Instant::now();
        memory.page(page).store(page as u64, Relaxed);
        latencies.record(began.elapsed());
    }
    log.every = Some(latencies);
}

fn write_at_random(memory: &Memory, log: &mut Log) {
    let words = memory.bytes() as u64 / 8;
    let mut state = 1_u64;
    let began = Instant::now();
    for write in 0..RANDOM_WRITES {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let word = ((state >> 32) * words) >> 32;
        memory.word(word as usize * 8).store(write, Relaxed);
    }
    black_box(state);
    log.random.push(began.elapsed().as_nanos() as f64 / RANDOM_WRITES as f64);
}

/// Seed 002's figures: means of writing all of 512 MB, and of a million random writes.
pub(super) fn push_published(report: &mut Report) {
    let published = [("fork", 742.0, 28.0), ("COW PTE", 45.0, 27.0), ("uffd-wp", 2_676.0, 60.0)];
    for (variant, every_ns, random_ns) in published {
        for (metric, stat, ns) in [(EVERY, "mean", every_ns), (RANDOM, "value", random_ns)] {
            let row = Row::new("seed-002", metric, stat, ns, "ns");
            report.row(row.size_bytes(BYTES).variant(variant));
        }
    }
}

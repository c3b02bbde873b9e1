//! Cost of the parent's writes after a fork.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::report::{Latencies, Report, Row};
use cowslip::units::ByteCount;

use super::{Bench, MIB, Options};
use crate::error::Result;
use crate::host::warm;
use crate::interleaved::Interleaved;
use crate::mechanisms::MechanismKind;
use crate::memory::Memory;
use crate::rows::push_durations;

/// Writes to every page, in order.
const EVERY: &str = "write_every_page";
/// The mean of a million writes, most of them to pages that were written before.
pub(super) const RANDOM: &str = "random_write_mean";

/// The last one only with `--full`: it makes no child, and its writes take thirty times as long.
const KINDS: [MechanismKind; 4] = [
    MechanismKind::Fork4k,
    MechanismKind::CowslipFork,
    MechanismKind::ForkThp,
    MechanismKind::UffdWp4k,
];
pub(super) const BYTES: u64 = 512 * MIB;
const RANDOM_WRITES: u64 = 1_000_000;
const LEAST_ROUNDS: u32 = 2;
const MOST_ROUNDS: u32 = 5;

#[derive(Default)]
struct Log {
    every: Option<Latencies>,
    random: Vec<f64>,
}

/// Length of the written memory.
pub(super) fn size_bytes(options: &Options) -> u64 {
    (options.working_bytes() as u64).min(BYTES)
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = size_bytes(options) as usize;
    bench.progress.phase("writes after a fork: filling memory");
    let kinds = if bench.clock.is_full() { &KINDS[..] } else { &KINDS[..3] };
    let mut entries = Interleaved::open(bench, kinds, |_| RANDOM.to_owned(), bytes, Log::default)?;
    // The first round warms up.
    for round in bench.clock.rounds(1.0, 1 + LEAST_ROUNDS, 1 + MOST_ROUNDS) {
        bench.progress.phase(&format!("writes after a fork: round {round} of {MOST_ROUNDS}"));
        entries.each(bench, |entry, stop| {
            for write in [write_every_page, write_at_random] {
                entry.mechanism.renew()?;
                entry.mechanism.memory().touch(stop)?;
                warm(ByteCount(bytes as u64), stop)?;
                entry.mechanism.snapshot()?;
                let mut log = Log::default();
                write(entry.mechanism.memory(), &mut log);
                entry.mechanism.release()?;
                if round > 0 {
                    entry.log.random.extend(log.random);
                    if let Some(every) = log.every {
                        entry.log.every.get_or_insert_with(Latencies::new).merge(&every);
                    }
                }
            }
            Ok(())
        })?;
    }
    for (kind, log) in entries.finish() {
        let size = bytes as u64;
        if let Some(every) = log.every {
            every.push(bench.report, kind.name(), EVERY, Some(size), None);
        }
        let row = Row::new(kind.name(), RANDOM, "", 0.0, "ns").size_bytes(size);
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

/// Lin 2022's figures (see [`super`]): means of writing all of 512 MB, and of a million random writes.
pub(super) fn push_published(report: &mut Report) {
    let published = [("fork", 742.0, 28.0), ("COW PTE", 45.0, 27.0), ("uffd-wp", 2_676.0, 60.0)];
    for (variant, every_ns, random_ns) in published {
        for (metric, stat, ns) in [(EVERY, "mean", every_ns), (RANDOM, "value", random_ns)] {
            let row = Row::new("Lin 2022", metric, stat, ns, "ns");
            report.row(row.size_bytes(BYTES).variant(variant));
        }
    }
}

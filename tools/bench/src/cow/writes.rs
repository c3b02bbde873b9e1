//! Single writes after a snapshot: the first in each 2 MiB, and another page of the same.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::report::Latencies;
use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};

use super::{Bench, Options};
use crate::error::Result;
use crate::host::warm;
use crate::interleaved::Interleaved;
use crate::mechanisms::MechanismKind;
use crate::memory::Memory;

/// `fork_first_write`, `view_first_write`, and so on.
const FIRST: &str = "first_write";
const NEXT: &str = "next_write";

const KINDS: [MechanismKind; 7] = [
    MechanismKind::Fork4k,
    MechanismKind::ForkThp,
    MechanismKind::ForkHugetlb,
    MechanismKind::UffdWp4k,
    MechanismKind::UffdWpThp,
    MechanismKind::Cowslip,
    MechanismKind::CowslipFork,
];

const LEAST_ROUNDS: u32 = 2;
const MOST_ROUNDS: u32 = 5;
/// The pages written in each 2 MiB, neither at its border nor neighbours.
const FIRST_PAGE: usize = 7;
const NEXT_PAGE: usize = 100;
/// Free pages that a round takes: two copies and a page table for each 2 MiB, and more.
const COPIES: usize = 8;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    bench.progress.phase("writes after a snapshot: filling memory");
    let log = || (Latencies::new(), Latencies::new());
    let mut entries = Interleaved::open(bench, &KINDS, |kind| kind.metric(FIRST), bytes, log)?;
    // The first round warms up.
    for round in bench.clock.rounds(1.0, 1 + LEAST_ROUNDS, 1 + MOST_ROUNDS) {
        bench.progress.phase(&format!("writes after a snapshot: round {round} of {MOST_ROUNDS}"));
        entries.each(bench, |entry, stop| {
            entry.mechanism.renew()?;
            entry.mechanism.memory().touch(stop)?;
            warm(
                ByteCount((entry.mechanism.memory().chunks() * COPIES * page_size_bytes()) as u64),
                stop,
            )?;
            entry.mechanism.snapshot()?;
            let first = time_writes(entry.mechanism.memory(), FIRST_PAGE);
            let next = time_writes(entry.mechanism.memory(), NEXT_PAGE);
            if round > 0 {
                entry.log.0.merge(&first);
                entry.log.1.merge(&next);
            }
            entry.mechanism.release()
        })?;
    }
    for (kind, (first, next)) in entries.finish() {
        for (metric, latencies) in [(FIRST, first), (NEXT, next)] {
            let size = Some(bytes as u64);
            let metric = kind.metric(metric);
            latencies.push(bench.report, kind.name(), &metric, size, kind.variant());
        }
    }
    Ok(())
}

/// Writes eight bytes to page `page` of each 2 MiB.
fn time_writes(memory: &Memory, page: usize) -> Latencies {
    let mut latencies = Latencies::new();
    for chunk in 0..memory.chunks() {
        let word = memory.word(chunk * CHUNK_BYTES + page * page_size_bytes());
        let began = Instant::now();
        word.store(chunk as u64, Relaxed);
        latencies.record(began.elapsed());
    }
    latencies
}

//! Single writes after a snapshot: the first in each 2 MiB, and another page of the same.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use cowslip::units::{CHUNK_BYTES, page_size_bytes};
use cowslip_report::Latencies;

use super::{Bench, Options};
use crate::error::Result;
use crate::field::Field;
use crate::memory::{Memory, warm_free};
use crate::rivals::Kind;

pub(super) const FIRST: &str = "first_write";
const NEXT: &str = "next_write";

const KINDS: [Kind; 6] = [
    Kind::Fork4k,
    Kind::ForkThp,
    Kind::ForkHugetlb,
    Kind::UffdWp4k,
    Kind::UffdWpThp,
    Kind::Cowslip,
];

const ROUNDS: u64 = 5;
/// The pages written in each 2 MiB, neither at its border nor neighbours.
const FIRST_PAGE: usize = 7;
const NEXT_PAGE: usize = 100;
/// Free pages that a round takes: two copies and a page table for each 2 MiB, and more.
const COPIES: usize = 8;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    bench.progress.phase("writes after a snapshot: filling the rivals' memory");
    let log = || (Latencies::new(), Latencies::new());
    let mut field = Field::open(bench, &KINDS, FIRST, bytes, log)?;
    // The first round is to warm up.
    for round in 0..=ROUNDS {
        bench.progress.phase(&format!("writes after a snapshot: round {round} of {ROUNDS}"));
        field.each(bench, |lane, stop| {
            lane.rival.renew()?;
            lane.rival.memory().touch(stop)?;
            warm_free(lane.rival.memory().chunks() * COPIES * page_size_bytes(), stop)?;
            lane.rival.snapshot()?;
            let first = time_writes(lane.rival.memory(), FIRST_PAGE);
            let next = time_writes(lane.rival.memory(), NEXT_PAGE);
            if round > 0 {
                lane.log.0.merge(&first);
                lane.log.1.merge(&next);
            }
            lane.rival.release()
        })?;
    }
    for (kind, (first, next)) in field.finish() {
        for (metric, latencies) in [(FIRST, first), (NEXT, next)] {
            let size = Some(bytes as u64);
            latencies.push(bench.report, kind.rival(), metric, size, kind.variant());
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

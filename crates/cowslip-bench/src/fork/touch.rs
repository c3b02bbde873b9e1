//! What a cheap fork leaves to be paid later: until a child has read so much of the memory.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use cowslip_report::Row;

use super::{Bench, Options};
use crate::error::Result;
use crate::field::Field;
use crate::memory::Memory;
use crate::rivals::Kind;
use crate::rows::push_durations;

/// From the child's first instruction on.
const METRIC: &str = "child_reads";
const KINDS: [Kind; 3] = [Kind::Fork4k, Kind::CowslipFork, Kind::ForkThp];
const SHARES: [(usize, &str); 3] = [(1, "1 %"), (10, "10 %"), (100, "100 %")];
const ROUNDS: u32 = 5;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    bench.progress.phase("a child's first reads: filling the rivals' memory");
    let mut field = Field::open(bench, &KINDS, METRIC, bytes, Vec::new)?;
    // The first round is to warm up.
    for round in 0..=ROUNDS {
        bench.progress.phase(&format!("a child's first reads: round {round} of {ROUNDS}"));
        field.each(bench, |lane, stop| {
            lane.rival.renew()?;
            lane.rival.memory().touch(stop)?;
            let (answer, _) = lane.rival.answer(read_shares)?;
            if round > 0 {
                lane.log.push(answer);
            }
            lane.rival.release()
        })?;
    }
    for (kind, log) in field.finish() {
        for (i, (_, share)) in SHARES.into_iter().enumerate() {
            let ns: Vec<_> = log.iter().map(|answer: &[u64; 3]| answer[i] as f64).collect();
            let row = Row::new(kind.rival(), METRIC, "", 0.0, "ns").size_bytes(bytes as u64);
            push_durations(bench.report, &row.variant(share), &ns);
        }
    }
    Ok(())
}

/// In a child: reads a word of each page until each share is read. Nanoseconds.
fn read_shares(memory: &Memory) -> [u64; 3] {
    let began = Instant::now();
    let mut next = 0;
    SHARES.map(|(percent, _)| {
        let end = memory.pages() * percent / 100;
        for page in next..end {
            black_box(memory.page(page).load(Relaxed));
        }
        next = end;
        began.elapsed().as_nanos() as u64
    })
}

//! Deferred cost of a cheap fork: the time until a child has read a share of the memory.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::report::Row;
use cowslip::units::ByteCount;

use super::{Bench, Options};
use crate::error::Result;
use crate::host::warm;
use crate::interleaved::Interleaved;
use crate::mechanisms::MechanismKind;
use crate::memory::Memory;
use crate::rows::push_durations;

/// Time from the child's first instruction on.
const METRIC: &str = "child_reads";
const KINDS: [MechanismKind; 3] =
    [MechanismKind::Fork4k, MechanismKind::CowslipFork, MechanismKind::ForkThp];
const SHARES: [(usize, &str); 3] = [(1, "1 %"), (10, "10 %"), (100, "100 %")];
const LEAST_ROUNDS: u32 = 2;
const MOST_ROUNDS: u32 = 5;
/// Free memory that a child's page tables take.
const TABLES: ByteCount = ByteCount::mib(32);

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    bench.progress.phase("a child's first reads: filling memory");
    let mut entries = Interleaved::open(bench, &KINDS, |_| METRIC.to_owned(), bytes, Vec::new)?;
    // The first round warms up.
    for round in bench.clock.rounds(1.0, 1 + LEAST_ROUNDS, 1 + MOST_ROUNDS) {
        bench.progress.phase(&format!("a child's first reads: round {round} of {MOST_ROUNDS}"));
        entries.each(bench, |entry, stop| {
            entry.mechanism.renew()?;
            entry.mechanism.memory().touch(stop)?;
            warm(TABLES, stop)?;
            let (answer, _) = entry.mechanism.answer(read_shares)?;
            if round > 0 {
                entry.log.push(answer);
            }
            entry.mechanism.release()
        })?;
    }
    for (kind, log) in entries.finish() {
        for (i, (_, share)) in SHARES.into_iter().enumerate() {
            let ns: Vec<_> = log.iter().map(|answer: &[u64; 3]| answer[i] as f64).collect();
            let row = Row::new(kind.name(), METRIC, "", 0.0, "ns").size_bytes(bytes as u64);
            push_durations(bench.report, &row.variant(share), &ns);
        }
    }
    Ok(())
}

/// In a child: reads a word of each page until each share is read, and returns the nanoseconds.
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

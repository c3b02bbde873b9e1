//! Durg's experiment (see [`super`]): N huge pages, a fork, one write in each (sparse) or in each 4 KiB of them
//! (dense). Durg's programs write in the child, here the parent does; the kernel's work is the same.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::report::{Report, Row};
use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};

use super::{Bench, Options};
use crate::error::Result;
use crate::host::warm;
use crate::interleaved::Interleaved;
use crate::mechanisms::MechanismKind;
use crate::memory::Memory;
use crate::rows::push_durations;

const METRIC: &str = "writes_in_huge_pages";
const PUBLISHED: &str = "fork_writes_in_huge_pages";
const KINDS: [MechanismKind; 4] = [
    MechanismKind::Fork4k,
    MechanismKind::ForkHugetlb,
    MechanismKind::ForkThp,
    MechanismKind::CowslipFork,
];
const HUGE_PAGES: [usize; 4] = [1, 128, 256, 512];
const LEAST_ROUNDS: u32 = 2;
const MOST_ROUNDS: u32 = 3;

/// Spacing of the writes.
#[derive(Clone, Copy)]
enum Density {
    Sparse,
    Dense,
}

impl Density {
    fn stride_bytes(self) -> usize {
        match self {
            Self::Sparse => CHUNK_BYTES,
            Self::Dense => page_size_bytes(),
        }
    }

    /// Round 0 warms up: the pool of hugetlb pages stays warm from the sparse writes on.
    fn first_round(self) -> u32 {
        match self {
            Self::Sparse => 0,
            Self::Dense => 1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sparse => "sparse",
            Self::Dense => "dense",
        }
    }
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    bench.progress.phase("writes in huge pages: filling memory");
    let mut entries =
        Interleaved::open(bench, &KINDS, |kind| kind.metric(METRIC), bytes, Vec::new)?;
    let densities = [Density::Sparse, Density::Dense];
    let cases: Vec<_> = densities
        .into_iter()
        .flat_map(|density| HUGE_PAGES.map(|pages| (density, pages)))
        .filter(|(_, pages)| pages * CHUNK_BYTES <= bytes)
        .collect();
    for (i, &(density, huge_pages)) in cases.iter().enumerate() {
        bench.progress.phase(&format!("writes in huge pages: {} {huge_pages}", density.name()));
        entries.each(bench, |entry, _| {
            entry.log.push(Vec::new());
            Ok(())
        })?;
        let share = 1.0 / (cases.len() - i) as f64;
        let first = density.first_round();
        for round in bench.clock.rounds(share, LEAST_ROUNDS, MOST_ROUNDS + 1 - first) {
            let round = first + round;
            entries.each(bench, |entry, stop| {
                entry.mechanism.renew()?;
                entry.mechanism.memory().touch(stop)?;
                let writes = huge_pages * CHUNK_BYTES / density.stride_bytes();
                warm(ByteCount(((writes + huge_pages) * page_size_bytes()) as u64), stop)?;
                entry.mechanism.snapshot()?;
                let ns = time_writes(entry.mechanism.memory(), density, huge_pages);
                if round > 0 {
                    entry.log.last_mut().expect("pushed above").push(ns);
                }
                entry.mechanism.release()
            })?;
        }
    }
    let logs: Vec<_> = entries.finish().collect();
    for (case, (density, huge_pages)) in cases.iter().enumerate() {
        let variant = format!("{} {huge_pages}", density.name());
        for (kind, log) in &logs {
            let row = Row::new(kind.name(), &kind.metric(METRIC), "", 0.0, "ns")
                .variant(variant.as_str());
            let row = row.size_bytes((huge_pages * CHUNK_BYTES) as u64);
            push_durations(bench.report, &row, &log[case]);
        }
    }
    Ok(())
}

fn time_writes(memory: &Memory, density: Density, huge_pages: usize) -> f64 {
    let began = Instant::now();
    for at in (0..huge_pages * CHUNK_BYTES).step_by(density.stride_bytes()) {
        memory.word(at).store(1, Relaxed);
    }
    began.elapsed().as_nanos() as f64
}

/// Durg's own figures: means of whole programs by hyperfine, filling the memory included.
pub(super) fn push_published(report: &mut Report) {
    const HUGETLB_MS: [(&str, [f64; 4]); 2] =
        [("sparse", [10.3, 276.7, 563.2, 1161.0]), ("dense", [12.2, 369.3, 732.2, 1467.0])];
    const SMALL_MS: [(&str, [f64; 4]); 2] =
        [("sparse", [10.3, 200.0, 383.6, 773.3]), ("dense", [15.1, 392.4, 784.4, 1577.0])];
    for (pages, table) in [("hugetlb", HUGETLB_MS), ("4k", SMALL_MS)] {
        for (density, means_ms) in table {
            for (huge_pages, ms) in HUGE_PAGES.iter().zip(means_ms) {
                let variant = format!("{density} {huge_pages} {pages}");
                let row = Row::new("Durg 2025", PUBLISHED, "value", ms * 1e6, "ns");
                let size_bytes = (huge_pages * CHUNK_BYTES) as u64;
                report.row(row.size_bytes(size_bytes).variant(variant.as_str()));
            }
        }
    }
    let note = "Durg 2025 (https://aneeshdurg.me/posts/2025/09/08-hugepages): hyperfine's means of whole programs, which fill the memory too";
    report.notes.push(note.to_owned());
}

//! Huge pages that are left after ten snapshots, and their effect on reads.
//!
//! Read speed is compared with that of *control* memory, which is never frozen, measured in turns with it: a machine
//! that is slower for a while is slower for both.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::report::Row;

use super::{Bench, Options, mix, write_some};
use crate::error::Result;
use crate::interleaved::{Entry, Interleaved};
use crate::mechanisms::MechanismKind;
use crate::memory::Memory;
use crate::rows::{median, push_durations};

pub(super) const COVERAGE: &str = "huge_coverage";
pub(super) const READ: &str = "random_read";
/// Time of a read over that of a read of the control, at about the same moment.
pub(super) const READ_TO_CONTROL: &str = "random_read_to_control";
pub(super) const SNAPSHOTS: u64 = 10;

const KINDS: [MechanismKind; 2] = [MechanismKind::ForkThp, MechanismKind::CowslipFork];
const READS: u64 = 1 << 18;
const READ_ROUNDS: u32 = 21;
const LEAST_READ_ROUNDS: u32 = 7;

/// Huge coverage and reads of one mechanism, by phase.
#[derive(Default)]
struct Log {
    coverage: Vec<(String, f64)>,
    reads: Vec<Reads>,
}

/// Times of a read in one phase.
struct Reads {
    phase: &'static str,
    ns: Vec<f64>,
    to_control: Vec<f64>,
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    bench.progress.phase("huge coverage: filling memory");
    let mut entries =
        Interleaved::open(bench, &KINDS, |_| COVERAGE.to_owned(), bytes, Log::default)?;
    let control = MechanismKind::Cowslip.open(bytes, bench.stop)?;
    look(bench, &mut entries, "before", control.memory())?;
    for snapshot in 1..=SNAPSHOTS {
        bench.progress.phase(&format!("huge coverage: snapshot {snapshot} of {SNAPSHOTS}"));
        entries.each(bench, |entry, stop| {
            entry.mechanism.snapshot()?;
            write_some(entry.mechanism.memory(), snapshot, stop)
        })?;
        if snapshot == SNAPSHOTS {
            look(bench, &mut entries, "during", control.memory())?;
        }
        entries.each(bench, |entry, _| {
            entry.mechanism.release()?;
            entry.note_coverage(format!("snapshot {snapshot}"))
        })?;
    }
    look(bench, &mut entries, "after", control.memory())?;
    for (kind, log) in entries.finish() {
        push(bench, kind, bytes as u64, log);
    }
    let note = "random_read_after_over_before: both as multiples of reads of never frozen memory";
    bench.report.notes.push(note.to_owned());
    Ok(())
}

/// Measures coverage, and the speed of reads in turns with the control.
fn look(
    bench: &mut Bench<'_>,
    entries: &mut Interleaved<Log>,
    phase: &'static str,
    control: &Memory,
) -> Result<()> {
    bench.progress.phase(&format!("random reads, {phase}"));
    entries.each(bench, |entry, _| {
        entry.log.reads.push(Reads { phase, ns: Vec::new(), to_control: Vec::new() });
        entry.note_coverage(phase.to_owned())
    })?;
    for round in bench.clock.rounds(0.3, LEAST_READ_ROUNDS, READ_ROUNDS) {
        let seed = u64::from(round);
        entries.each(bench, |entry, _| {
            let before = random_read_ns(control, seed);
            let ns = random_read_ns(entry.mechanism.memory(), seed);
            let after = random_read_ns(control, seed);
            let reads = entry.log.reads.last_mut().expect("pushed above");
            reads.ns.push(ns);
            reads.to_control.push(ns / ((before + after) / 2.0));
            Ok(())
        })?;
    }
    Ok(())
}

impl Entry<Log> {
    fn note_coverage(&mut self, phase: String) -> Result<()> {
        let memory = self.mechanism.memory();
        memory.read_chunks();
        self.log.coverage.push((phase, memory.huge_coverage()?));
        Ok(())
    }
}

/// Time of one read. Each address depends on the read before.
fn random_read_ns(memory: &Memory, seed: u64) -> f64 {
    let words = memory.bytes() as u64 / 8;
    let mut state = mix(seed);
    let began = Instant::now();
    for _ in 0..READS {
        let word = ((state >> 32) * words) >> 32;
        let read = memory.word(word as usize * 8).load(Relaxed);
        state = (state ^ read).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767);
    }
    black_box(state);
    began.elapsed().as_nanos() as f64 / READS as f64
}

fn push(bench: &mut Bench<'_>, kind: MechanismKind, size_bytes: u64, log: Log) {
    let like = |metric, stat, value, unit| {
        Row::new(kind.name(), metric, stat, value, unit).size_bytes(size_bytes)
    };
    for (phase, coverage) in log.coverage {
        let row = like(COVERAGE, "value", coverage, "ratio");
        bench.report.row(row.variant(phase.as_str()));
    }
    for reads in log.reads {
        push_durations(bench.report, &like(READ, "", 0.0, "ns").variant(reads.phase), &reads.ns);
        if let Some(to_control) = median(&reads.to_control) {
            let row = like(READ_TO_CONTROL, "p50", to_control, "ratio").variant(reads.phase);
            bench.report.row(row.n(reads.to_control.len() as u64));
        }
    }
}

//! Incremental saves of an arena in which one chunk of a hundred changes between two: with changes found by hashing
//! everything, and with changes that the arena tracked; and the cost of tracking for the program.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::report::{Latencies, Row};
use cowslip::Frozen;
use cowslip::image::{Changes, SaveOptions, Saved, save};
use cowslip::units::CHUNK_BYTES;

use super::{Bench, Error, PATIENCE, Result, Sample};
use crate::restore::proceed;
use crate::rows::{median, push_durations};

const SAVE: &str = "incremental_save";
const READ: &str = "incremental_read_bytes";
const PAUSE: &str = "incremental_freeze_pause";
const FIRST_WRITE: &str = "incremental_first_write";
const COVERAGE: &str = "huge_coverage_after_incremental_saves";
const TRACKED: &str = "tracked";
const HASHED: &str = "hashed";
const SAVES: usize = 10;

pub(super) fn measure(bench: &mut Bench<'_>, sample: &Sample) -> Result<()> {
    let size = sample.bytes();
    let mut changes = Changing { sample, changed: Vec::new() };
    let untracked = changes.pauses(bench)?;
    if sample.arena.track_changes(true) {
        let measured = changes.saves(bench);
        sample.arena.track_changes(false);
        measured?;
    } else {
        let why =
            "the arena cannot track changes: userfaultfd, huge pages or PAGEMAP_SCAN is missing";
        bench.report.row(Row::skipped("cowslip", SAVE, why).size_bytes(size).variant(TRACKED));
    }
    let row = Row::new("cowslip", PAUSE, "", 0.0, "ns").size_bytes(size).variant(HASHED);
    push_durations(bench.report, &row, &untracked);
    let latencies = changes.first_writes()?;
    latencies.push(bench.report, "cowslip", FIRST_WRITE, Some(size), Some("live"));
    changes.undo();
    Ok(())
}

/// A sample with changed words.
struct Changing<'a> {
    sample: &'a Sample,
    /// The places of words that were increased by one.
    changed: Vec<usize>,
}

impl Changing<'_> {
    fn chunks(&self) -> usize {
        self.sample.memory.bytes() / CHUNK_BYTES
    }

    /// Changes a word in one chunk of a hundred, other chunks than the last times.
    fn change(&mut self) {
        let count = self.chunks().div_ceil(100);
        for i in 0..count {
            // Neighbours would be one run.
            let chunk = (self.changed.len() * 37 + i) % self.chunks();
            let place = chunk * CHUNK_BYTES;
            self.sample.memory.word(place).fetch_add(1, Relaxed);
            self.changed.push(place);
        }
    }

    fn undo(&mut self) {
        for place in self.changed.drain(..) {
            self.sample.memory.word(place).fetch_sub(1, Relaxed);
        }
    }

    fn wait_live(&self) -> Result<()> {
        if self.sample.arena.wait_live(PATIENCE) {
            return Ok(());
        }
        Err(Error::Failed(format!("it was not thawed within {PATIENCE:?}")))
    }

    fn freeze(&self) -> Result<(Frozen, f64)> {
        self.wait_live()?;
        self.sample.memory.read_chunks();
        let frozen = self.sample.arena.freeze()?;
        Ok((frozen, self.sample.arena.metrics().last_freeze_ns as f64))
    }

    /// Pauses of freezes without tracking.
    fn pauses(&mut self, bench: &Bench<'_>) -> Result<Vec<f64>> {
        let mut pauses = Vec::new();
        for _ in 0..SAVES {
            bench.stop.check()?;
            self.change();
            pauses.push(self.freeze()?.1);
        }
        Ok(pauses)
    }

    fn saves(&mut self, bench: &mut Bench<'_>) -> Result<()> {
        let size = self.sample.bytes();
        let mut parent = self.sample.folder.path().join("tracked-0");
        let (frozen, _) = self.freeze()?;
        save(&[&frozen], &parent, &self.sample.options(), &mut proceed)?;
        drop(frozen);
        let ways = [(Changes::Hashed, HASHED), (Changes::Tracked, TRACKED)];
        let mut times = ways.map(|_| Vec::new());
        let mut read = ways.map(|_| Vec::new());
        let mut pauses = Vec::new();
        for round in 1..=SAVES {
            bench.progress.phase(&format!("save: increments, round {round} of {SAVES}"));
            bench.stop.check()?;
            self.change();
            let (frozen, pause) = self.freeze()?;
            pauses.push(pause);
            for (i, (changes, way)) in ways.into_iter().enumerate() {
                let target = self.sample.folder.path().join(format!("{way}-{round}"));
                let began = Instant::now();
                let saved = self.increment(&frozen, &target, &parent, changes)?;
                times[i].push(began.elapsed().as_nanos() as f64);
                read[i].push((saved.read_chunks * CHUNK_BYTES as u64) as f64);
                if changes == Changes::Tracked {
                    parent = target;
                } else {
                    let _ = std::fs::remove_file(target);
                }
            }
        }
        let rows = ways.iter().zip(times).zip(read);
        for (((_, way), times), read) in rows {
            let row = Row::new("cowslip", SAVE, "", 0.0, "ns").size_bytes(size).variant(*way);
            push_durations(bench.report, &row, &times);
            if let Some(bytes) = median(&read) {
                let row = Row::new("cowslip", READ, "p50", bytes, "bytes").size_bytes(size);
                bench.report.row(row.variant(*way).n(read.len() as u64));
            }
        }
        let row = Row::new("cowslip", PAUSE, "", 0.0, "ns").size_bytes(size).variant(TRACKED);
        push_durations(bench.report, &row, &pauses);
        self.wait_live()?;
        self.sample.memory.read_chunks();
        let coverage = self.sample.memory.huge_coverage()?;
        bench
            .report
            .row(Row::new("cowslip", COVERAGE, "value", coverage, "ratio").size_bytes(size));
        let latencies = self.first_writes()?;
        latencies.push(bench.report, "cowslip", FIRST_WRITE, Some(size), Some("kept"));
        Ok(())
    }

    fn increment(
        &self,
        frozen: &Frozen,
        target: &Path,
        parent: &Path,
        changes: Changes,
    ) -> Result<Saved> {
        let options =
            SaveOptions { parent: Some(parent.to_owned()), changes, ..self.sample.options() };
        Ok(save(&[frozen], target, &options, &mut proceed)?)
    }

    /// Writes a word of every chunk once all were read: of kept chunks, or of live ones.
    fn first_writes(&self) -> Result<Latencies> {
        self.wait_live()?;
        self.sample.memory.read_chunks();
        let mut latencies = Latencies::new();
        for chunk in 0..self.chunks() {
            let word = self.sample.memory.word(chunk * CHUNK_BYTES + CHUNK_BYTES / 2);
            let began = Instant::now();
            word.fetch_add(1, Relaxed);
            latencies.record(began.elapsed());
            word.fetch_sub(1, Relaxed);
        }
        Ok(latencies)
    }
}

//! Mechanisms that are measured in turns, so that they share the noise of the machine.

use crate::report::Row;
use cowslip::units::ByteCount;

use super::Options;
use super::bench::Bench;
use super::clock::Rounds;
use super::error::{Error, Result};
use super::interrupt::Interrupt;
use super::mechanisms::{Mechanism, MechanismKind};

/// A measurement at many sizes.
pub(crate) struct BySize<'a> {
    /// The measurement's name on the terminal.
    pub(crate) doing: &'static str,
    /// The sizes with `--full`.
    pub(crate) all_sizes: &'a [u64],
    /// The sizes without it.
    pub(crate) sizes: &'a [u64],
    /// Neighbours share memory that holds only two.
    pub(crate) kinds: &'a [MechanismKind],
    /// Rounds besides the first, which warms up.
    pub(crate) least_rounds: u32,
}

impl BySize<'_> {
    /// Calls `measure` with as many of the kinds together as fit the memory: kinds, bytes, rounds. The time is divided
    /// in proportion to memory.
    pub(crate) fn each(
        &self,
        bench: &mut Bench<'_>,
        options: &Options,
        measure: impl Fn(&mut Bench<'_>, &[MechanismKind], u64, Rounds) -> Result<()>,
    ) -> Result<()> {
        let sizes = if bench.clock.is_full() { self.all_sizes } else { self.sizes };
        let mut groups = Vec::new();
        for &size in sizes.iter().filter(|&&size| size <= options.size.0) {
            let together = usize::try_from(options.budget.0 / size).unwrap_or(1);
            let kinds = self.kinds.chunks(together.clamp(1, self.kinds.len()));
            groups.extend(kinds.map(|kinds| (size, kinds)));
        }
        let weight = |&(size, kinds): &(u64, &[MechanismKind])| size * kinds.len() as u64;
        for (i, group) in groups.iter().enumerate() {
            let (size, kinds) = *group;
            let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
            let doing = format!("{} at {}: {}", self.doing, ByteCount(size), names.join(", "));
            bench.progress.phase(&doing);
            let left: u64 = groups[i..].iter().map(weight).sum();
            let share = weight(group) as f64 / left as f64;
            let rounds = bench.clock.rounds(share, 1 + self.least_rounds, 1 + options.runs);
            bench.watched(|bench| measure(bench, kinds, size, rounds))?;
        }
        Ok(())
    }
}

/// Several mechanisms on memory of the same size, each with a log of its measurements.
pub(crate) struct Interleaved<T> {
    /// The metric of the skipped row of a kind that cannot run.
    metric: fn(MechanismKind) -> String,
    bytes: usize,
    entries: Vec<Entry<T>>,
}

pub(crate) struct Entry<T> {
    pub(crate) kind: MechanismKind,
    pub(crate) mechanism: Box<dyn Mechanism>,
    pub(crate) log: T,
}

impl<T> Interleaved<T> {
    /// Opens the mechanisms that can run here; the others get a skipped row of their metric.
    pub(crate) fn open(
        bench: &mut Bench<'_>,
        kinds: &[MechanismKind],
        metric: fn(MechanismKind) -> String,
        bytes: usize,
        log: impl Fn() -> T,
    ) -> Result<Self> {
        let mut entries = Self { metric, bytes, entries: Vec::new() };
        for &kind in kinds {
            match kind.open(bytes, bench.stop) {
                Ok(mechanism) => entries.entries.push(Entry { kind, mechanism, log: log() }),
                Err(error) => entries.skip(bench, kind, error)?,
            }
        }
        Ok(entries)
    }

    /// Does `work` with each mechanism in turn, and drops a mechanism that fails.
    pub(crate) fn each(
        &mut self,
        bench: &mut Bench<'_>,
        mut work: impl FnMut(&mut Entry<T>, &Interrupt) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.entries.len() {
            bench.stop.check()?;
            match work(&mut self.entries[at], bench.stop) {
                Ok(()) => at += 1,
                Err(error) => {
                    let entry = self.entries.remove(at);
                    self.skip(bench, entry.kind, error)?;
                }
            }
        }
        Ok(())
    }

    /// The mechanisms that are left.
    pub(crate) fn finish(self) -> impl Iterator<Item = (MechanismKind, T)> {
        self.entries.into_iter().map(|entry| (entry.kind, entry.log))
    }

    fn skip(&self, bench: &mut Bench<'_>, kind: MechanismKind, error: Error) -> Result<()> {
        let Error::Failed(why) = error else { return Err(error) };
        let row = Row::skipped(kind.name(), &(self.metric)(kind), why);
        bench.report.row(row.size_bytes(self.bytes as u64).variant(kind.variant()));
        Ok(())
    }
}

//! Rivals that are measured in turns, so that they share the noise of the machine.

use cowslip::units::ByteCount;
use cowslip_report::{Progress, Report, Row};

use super::error::{Error, Result};
use super::interrupt::Interrupt;
use super::program::Libraries;
use super::rivals::{Kind, Rival};
use super::{GIB, Options};

/// What all measurements of a run share.
pub struct Bench<'a> {
    /// Gets the results.
    pub report: &'a mut Report,
    /// Is told what is being measured.
    pub progress: &'a mut Progress,
    /// Looked at now and then.
    pub stop: &'a Interrupt,
    /// For the programs that are run under Cowslip, and with its malloc alone.
    pub libraries: &'a Libraries,
}

/// Runs of a measurement at many sizes: more than these take too long above 1 GiB.
pub(crate) struct BySize<'a> {
    /// What is measured, for who watches.
    pub(crate) doing: &'static str,
    pub(crate) sizes: &'a [u64],
    /// Neighbours share memory that holds only two.
    pub(crate) kinds: &'a [Kind],
    pub(crate) most_runs_above_1_gib: u32,
}

impl BySize<'_> {
    /// Has `measure` measure as many of the kinds together as fit the memory: kinds, bytes, runs.
    pub(crate) fn each(
        &self,
        bench: &mut Bench<'_>,
        options: &Options,
        measure: impl Fn(&mut Bench<'_>, &[Kind], u64, u32) -> Result<()>,
    ) -> Result<()> {
        let kinds = self.kinds;
        for &size in self.sizes.iter().filter(|&&size| size <= options.size.0) {
            let together = usize::try_from(options.budget.0 / size).unwrap_or(1);
            let most = if size > GIB { self.most_runs_above_1_gib } else { u32::MAX };
            for kinds in kinds.chunks(together.clamp(1, kinds.len())) {
                let names: Vec<_> = kinds.iter().map(|kind| kind.rival()).collect();
                let doing = format!("{} at {}: {}", self.doing, ByteCount(size), names.join(", "));
                bench.progress.phase(&doing);
                measure(bench, kinds, size, options.runs.min(most))?;
            }
        }
        Ok(())
    }
}

/// Several rivals on memory of the same size, each with what was measured of it.
pub(crate) struct Field<T> {
    metric: &'static str,
    bytes: usize,
    lanes: Vec<Lane<T>>,
}

pub(crate) struct Lane<T> {
    pub(crate) kind: Kind,
    pub(crate) rival: Box<dyn Rival>,
    pub(crate) log: T,
}

impl<T> Field<T> {
    /// The rivals that can run here; the others get a skipped row of `metric`.
    pub(crate) fn open(
        bench: &mut Bench<'_>,
        kinds: &[Kind],
        metric: &'static str,
        bytes: usize,
        log: impl Fn() -> T,
    ) -> Result<Self> {
        let mut field = Self { metric, bytes, lanes: Vec::new() };
        for &kind in kinds {
            match kind.open(bytes, bench.stop) {
                Ok(rival) => field.lanes.push(Lane { kind, rival, log: log() }),
                Err(error) => field.skip(bench, kind, error)?,
            }
        }
        Ok(field)
    }

    /// Does `work` with each rival in turn; who fails is out.
    pub(crate) fn each(
        &mut self,
        bench: &mut Bench<'_>,
        mut work: impl FnMut(&mut Lane<T>, &Interrupt) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.lanes.len() {
            bench.stop.check()?;
            match work(&mut self.lanes[at], bench.stop) {
                Ok(()) => at += 1,
                Err(error) => {
                    let lane = self.lanes.remove(at);
                    self.skip(bench, lane.kind, error)?;
                }
            }
        }
        Ok(())
    }

    /// Those who are left.
    pub(crate) fn finish(self) -> impl Iterator<Item = (Kind, T)> {
        self.lanes.into_iter().map(|lane| (lane.kind, lane.log))
    }

    fn skip(&self, bench: &mut Bench<'_>, kind: Kind, error: Error) -> Result<()> {
        let Error::Failed(why) = error else { return Err(error) };
        let row = Row::skipped(kind.rival(), self.metric, why);
        bench.report.row(row.size_bytes(self.bytes as u64).variant(kind.variant()));
        Ok(())
    }
}

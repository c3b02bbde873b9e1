//! Measures the gain of a process: its dense memory is made huge and split again, in turns.

mod sample;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::process;
use cowslip_sys::units::CHUNK_BYTES;

use super::{Round, Session};
use crate::model::{
    GainState, Measurement, Pair, ProcessId, RegionKind, Spent, System, Unclear, Verdict,
};
use crate::policy::{Decision, MOST_BLOCKS, Reason, Trial, check_load, order, pairs};
use crate::work::{Instructions, Meter};
use sample::Sample;

/// Fewer dense regions than this are not worth a measurement.
const LEAST_REGIONS: usize = 8;
/// The time that caches get after a change of state.
const SETTLE: Duration = Duration::from_millis(50);
/// The time in which other programs may stop waiting for memory.
const RELIEF: Duration = Duration::from_secs(5);
/// Periods in which the load is examined without a counter of work.
const LOAD_PERIODS: usize = 6;
/// A turn takes at most this part of the time that there is: a block has two or three, and a first answer four blocks.
const TURNS: u32 = 10;
/// Without a result, the daemon measures again after this time.
const RETRY_NS: u64 = 3_600_000_000_000;

impl Session {
    /// Measures the gain of a process by the regions that the round found [`Reason::Unmeasured`], if it has enough of
    /// them. Later looks know the answer. `progress` gets the number of blocks, and the most that there may be.
    ///
    /// The process may end at any time: `Vanished`. A counter of work that cannot be read at first is an error.
    pub fn measure_gain(
        &mut self,
        round: &Round,
        process: ProcessId,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Measurement> {
        let wanted = unmeasured(round, process);
        let mut measurement = Measurement {
            verdict: Verdict::Unclear(Unclear::TooLittle),
            change_percent: None,
            saved_ns: None,
            unit: None,
            blocks: 0,
            void_blocks: 0,
            dense_bytes: (wanted.len() * CHUNK_BYTES) as u64,
            sample_bytes: 0,
            added_bytes: 0,
            huge_bytes: 0,
        };
        if wanted.len() < LEAST_REGIONS {
            // A process that has ended has none.
            self.promoter.target(process)?.cpu_ns()?;
            return Ok(self.keep(process, measurement));
        }
        let mut meter = match self.meter(process)? {
            Ok(meter) => meter,
            Err(why) => {
                measurement.verdict = Verdict::Unclear(why);
                return Ok(self.keep(process, measurement));
            }
        };
        measurement.unit = Some(meter.unit());
        let mut sample = Sample::from_regions(wanted, self.promoter.policy().settings());
        let mut trial = Trial::default();
        let began_ns = process::now_ns();
        let cpu_before_ns = self.promoter.target(process)?.cpu_ns()?;
        let tried = self.run(&mut trial, &mut sample, &mut meter, &mut progress);
        let verdict = match tried {
            Ok(verdict) => verdict,
            Err(error) => {
                // The pages stay huge if the process has ended, or may not be acted on.
                let _ = self.split_again(&mut sample);
                return Err(error);
            }
        };
        measurement.verdict = verdict;
        let cpu_ns = self.promoter.target(process)?.cpu_ns()?.saturating_sub(cpu_before_ns);
        let busy = cpu_ns as f64 / (process::now_ns() - began_ns) as f64;
        if verdict == Verdict::Gain {
            self.turn(&mut sample, true)?;
        } else {
            self.split_again(&mut sample)?;
        }
        (measurement.blocks, measurement.void_blocks) = trial.counts();
        measurement.change_percent = trial.change_percent();
        measurement.saved_ns = measurement.change_percent.map(|change| {
            busy * 1e9 * -change.value / 100.0 / (sample.bytes() / CHUNK_BYTES as u64) as f64
        });
        measurement.sample_bytes = sample.bytes();
        measurement.added_bytes = sample.added_bytes();
        measurement.huge_bytes = (self.count_huge(&sample)? * CHUNK_BYTES) as u64;
        Ok(self.keep(process, measurement))
    }

    /// Measures the next process that waits for it.
    pub(crate) fn measure_next(&mut self, round: &Round) -> Result<Option<(String, Measurement)>> {
        let now_ns = process::now_ns();
        let due = |process: &ProcessId| {
            self.measure_at_ns.get(process).is_none_or(|at_ns| now_ns >= *at_ns)
                && unmeasured(round, *process).len() >= LEAST_REGIONS
        };
        let waiting = self.promoter.targets().filter(|target| target.gain == GainState::Unmeasured);
        let next =
            waiting.map(|target| (target.id(), target.name())).find(|(process, _)| due(process));
        let Some((process, name)) = next else { return Ok(None) };
        let name = format!("{name} ({})", process.pid);
        match self.measure_gain(round, process, |_, _| {}) {
            Ok(measurement) => Ok(Some((name, measurement))),
            Err(error) if error.kind() == ErrorKind::Denied => Err(error),
            // The next look finds out if it has ended.
            Err(_) => {
                self.measure_at_ns.insert(process, process::now_ns() + RETRY_NS);
                Ok(None)
            }
        }
    }

    /// Keeps the answer for later looks, and for the report.
    fn keep(&mut self, process: ProcessId, measurement: Measurement) -> Measurement {
        if let Ok(target) = self.promoter.target(process) {
            target.gain = match measurement.verdict {
                Verdict::Gain => GainState::Assumed,
                Verdict::NoGain => GainState::NotShown,
                Verdict::Unclear(_) => GainState::Unmeasured,
            };
            target.saved_ns = measurement.saved_ns.filter(|_| measurement.verdict == Verdict::Gain);
        }
        self.measure_at_ns.insert(process, process::now_ns() + RETRY_NS);
        self.tally.processes.entry(process).or_default().measured = Some(measurement);
        measurement
    }

    /// The named counter, else time if the load is steady, else instructions where they are counted.
    fn meter(&mut self, process: ProcessId) -> Result<Result<Meter, Unclear>> {
        let Some(work) = self.promoter.target(process)?.work.clone() else {
            return Ok(match self.examine_load(process)? {
                Ok(()) => Ok(Meter::Time),
                Err(why @ (Unclear::Saturated | Unclear::Unsteady)) => {
                    Instructions::open(process.pid).map(Meter::Instructions).map_err(|_| why)
                }
                Err(why) => Err(why),
            });
        };
        let same =
            self.promoter.targets().filter(|target| target.work.as_ref() == Some(&work)).count();
        if same > 1 {
            return Ok(Err(Unclear::UnitShared));
        }
        let unreadable =
            |error| Error::from_io(format_args!("read the unit of work {work}"), &error);
        Meter::new(&work).map(Ok).map_err(unreadable)
    }

    fn examine_load(&mut self, process: ProcessId) -> Result<Result<(), Unclear>> {
        let began_ns = process::now_ns();
        let busy_before = self.promoter.target(process)?.busy_ns()?;
        let mut loads = Vec::new();
        for _ in 0..LOAD_PERIODS {
            let Some(spent) = self.period(process, &mut Meter::Time)? else {
                return Ok(Err(Unclear::Interrupted));
            };
            loads.push(spent.cpu_ns as f64 / spent.work);
        }
        let passed_ns = process::now_ns() - began_ns;
        let busy = self.promoter.target(process)?.busy_ns()?;
        let grown =
            busy.iter().map(|(thread, ns)| ns - busy_before.get(thread).unwrap_or(ns).min(ns));
        let busiest = grown.max().unwrap_or(passed_ns) as f64 / passed_ns as f64;
        Ok(check_load(&loads, busiest))
    }

    fn run(
        &mut self,
        trial: &mut Trial,
        sample: &mut Sample,
        meter: &mut Meter,
        progress: &mut impl FnMut(usize, usize),
    ) -> Result<Verdict> {
        let settings = self.promoter.policy().settings();
        let least_percent = settings.min_gain_percent;
        let within = Duration::from_secs(settings.measure_within_s);
        let began = Instant::now();
        if self.has_memory(sample)? {
            self.turn_some(sample, within / TURNS, LEAST_REGIONS)?;
        }
        loop {
            progress(trial.counts().0, MOST_BLOCKS);
            let block_began = Instant::now();
            let block = self.block(sample, meter)?;
            if self.stops() {
                return Ok(Verdict::Unclear(Unclear::Interrupted));
            }
            trial.add(block);
            let is_over = began.elapsed() + block_began.elapsed() > within;
            if let Some(verdict) = trial.verdict(least_percent, is_over) {
                return Ok(verdict);
            }
        }
    }

    fn block(
        &mut self,
        sample: &mut Sample,
        meter: &mut Meter,
    ) -> Result<Result<[Pair; 2], Unclear>> {
        let order = order(fastrand::bool());
        let mut periods = Vec::with_capacity(order.len());
        for is_huge in order {
            if is_huge && !self.has_memory(sample)? {
                self.sleep(RELIEF)?;
                return Ok(Err(Unclear::NoRoom));
            }
            if self.turn(sample, is_huge)? > 0 {
                self.sleep(SETTLE)?;
            }
            let spent = self.period(sample.process, meter)?.ok_or(Unclear::NoWork);
            let is_as_wanted = sample.is_as_wanted(is_huge, self.count_huge(sample)?);
            match (spent, is_as_wanted) {
                (Ok(spent), Ok(())) => periods.push(spent),
                (Err(why), _) | (_, Err(why)) => return Ok(Err(why)),
            }
        }
        let periods = periods.try_into().expect("one for each of the order");
        Ok(Ok(pairs(order, periods)))
    }

    /// The processor time and the work of one period; `None` if no work was counted.
    fn period(&mut self, process: ProcessId, meter: &mut Meter) -> Result<Option<Spent>> {
        let period = Duration::from_millis(self.promoter.policy().settings().measure_period_ms);
        let mut now = |session: &mut Self| {
            let work = meter.read().unwrap_or(f64::NAN);
            session.promoter.target(process)?.cpu_ns().map(|cpu_ns| (cpu_ns, work))
        };
        let (cpu_before, work_before) = now(self)?;
        self.sleep(period)?;
        let (cpu_after, work_after) = now(self)?;
        let spent = Spent { cpu_ns: cpu_after - cpu_before, work: work_after - work_before };
        Ok(Some(spent).filter(|spent| spent.work > 0.0 && !self.stops()))
    }

    /// True if the machine has memory for what the sample fills in.
    fn has_memory(&self, sample: &Sample) -> Result<bool> {
        let settings = self.promoter.policy().settings();
        let system = System::look()?;
        let kept_bytes = system.total_bytes / 100 * u64::from(settings.keep_available_percent);
        Ok(system.pressure_percent < settings.pressure_percent
            && system.available_bytes >= kept_bytes + sample.missing_bytes())
    }

    fn count_huge(&mut self, sample: &Sample) -> Result<usize> {
        self.promoter.target(sample.process)?.huge_among(sample.addresses()).map(|huge| huge.len())
    }

    fn sleep(&mut self, time: Duration) -> Result<()> {
        self.rest_until(process::now_ns() + time.as_nanos() as u64)
    }
}

/// The regions of a process whose promotion waits for a measurement, and that can be split again.
fn unmeasured(round: &Round, process: ProcessId) -> Vec<Decision> {
    let looks = round.look.processes.iter().filter(|look| look.process == process);
    let regions = looks.flat_map(|look| &look.regions);
    let can_be_split: BTreeSet<u64> = regions
        .filter(|region| region.kind == RegionKind::Private)
        .map(|region| region.address)
        .collect();
    let is_wanted = |decision: &&Decision| {
        decision.process == process
            && decision.reason == Reason::Unmeasured
            && can_be_split.contains(&decision.address)
    };
    round.decisions.iter().filter(is_wanted).copied().collect()
}

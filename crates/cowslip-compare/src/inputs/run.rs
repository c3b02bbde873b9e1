//! A run and its metrics, from any source.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::collect::{LONGEST_NAME, clipped};
use crate::Prices;

/// The time that a run took: the metric that a comparison is about by default.
pub const WALL: &str = "wall_seconds";

/// Twenty ticks of 10 ms: in a shorter run one tick more or less is over 5 % of it.
const LEAST_SHARED_SECONDS: f64 = 0.2;

/// One run of a program or one recording of a machine.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Run {
    /// Its name for the user: its file.
    pub name: String,
    /// Facts about the machine and the command, shared by the runs of one file.
    pub facts: Arc<BTreeMap<String, String>>,
    /// By name.
    pub metrics: BTreeMap<String, Metric>,
    /// True for a command that ended by itself, false for a recording of a chosen length.
    pub ended_by_itself: bool,
    /// Columns that could not be compared, each with its reason.
    pub left_out: Vec<String>,
    /// The number of values that a metric lacks.
    pub missing: BTreeMap<String, usize>,
    /// Runs of the same benchmark that failed and are left out; the first run of the benchmark counts them.
    pub failed_runs: usize,
    /// The prices of the kernel's events, measured before the run.
    pub prices: Option<Prices>,
    /// Advice for a file that lacks the values of single runs.
    pub advice: Option<&'static str>,
}

/// The measurements of one thing in one run.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    samples: Vec<f64>,
    value: f64,
    growth: Option<Growth>,
    /// True if the run was too short for the ticks of its clock.
    pub(crate) is_coarse: bool,
    /// True if it may be a counter: its source does not say.
    pub(super) is_untyped: bool,
}

/// The growth of a counter, and its time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Growth {
    /// Growth from the first read to the last.
    pub count: f64,
    /// Time from the first read to the last.
    pub seconds: f64,
}

impl Run {
    /// A run without metrics.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Adds a value of the run as a whole.
    pub fn with(mut self, metric: &str, value: f64) -> Self {
        self.add(metric, Metric::levels(vec![value]));
        self
    }

    pub(super) fn add(&mut self, name: &str, metric: Option<Metric>) {
        if let Some(metric) = metric {
            self.metrics.insert(name.to_owned(), metric);
        }
    }

    /// Adds a metric, or says that it is left out: it has no finite value, or too long a name.
    pub(super) fn add_or_count(&mut self, name: &str, metric: Option<Metric>) {
        let metric = metric.filter(|_| name.len() <= LONGEST_NAME);
        if metric.is_none() {
            self.miss(name);
        }
        self.add(name, metric);
    }

    /// Adds a value of the run as a whole, or says that it is missing.
    pub(super) fn add_value(&mut self, name: &str, value: Option<f64>) {
        self.add_or_count(name, value.and_then(|value| Metric::levels(vec![value])));
    }

    /// Counts a value that the metric lacks.
    pub(super) fn miss(&mut self, name: &str) {
        *self.missing.entry(clipped(name).to_owned()).or_default() += 1;
    }
}

impl Metric {
    /// A level: its samples, and their mean for the run. `None` if no sample is finite.
    pub fn levels(mut samples: Vec<f64>) -> Option<Self> {
        samples.retain(|value| value.is_finite());
        let value = samples.iter().sum::<f64>() / samples.len() as f64;
        Self::new(samples, value)
    }

    /// `None` without samples, or if their sum overflows.
    fn new(samples: Vec<f64>, value: f64) -> Option<Self> {
        let (growth, is_coarse, is_untyped) = (None, false, false);
        value.is_finite().then_some(Self { samples, value, growth, is_coarse, is_untyped })
    }

    /// A counter that was read at times in seconds: its rate between two reads, its rate over the run, and its growth.
    /// `None` for fewer than two reads. A counter that falls began anew.
    pub fn counter(reads: &[(f64, f64)]) -> Option<Self> {
        Self::counts(reads_to_steps(reads))
    }

    /// A counter of time in ticks, which is meaningful only as a share of all time: its rates.
    pub fn share(reads: &[(f64, f64)]) -> Option<Self> {
        let seconds = reads.last()?.0 - reads.first()?.0;
        let metric = Self::rates(reads_to_steps(reads))?;
        Some(Self { is_coarse: seconds < LEAST_SHARED_SECONDS, ..metric })
    }

    /// A counter's growth in steps of seconds. Steps without time, or with negative growth, are ignored.
    pub(super) fn counts(steps: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let (samples, growth) = sum_up(steps);
        let metric = Self::new(samples, growth.count / growth.seconds)?;
        Some(Self { growth: Some(growth), ..metric })
    }

    /// Like [`Self::counts`], with meaningful rates only.
    pub(super) fn rates(steps: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let (samples, growth) = sum_up(steps);
        Self::new(samples, growth.count / growth.seconds)
    }

    pub(super) fn untyped(self) -> Self {
        Self { is_untyped: true, ..self }
    }

    /// Samples in the order of time; rates for a counter.
    pub fn samples(&self) -> &[f64] {
        &self.samples
    }

    /// The value of the run as a whole; the rate for a counter.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// The growth of a counter.
    pub fn growth(&self) -> Option<Growth> {
        self.growth
    }
}

fn reads_to_steps(reads: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    reads.windows(2).map(|two| (two[1].0 - two[0].0, two[1].1 - two[0].1))
}

/// The rate of each step, and all of them together.
fn sum_up(steps: impl Iterator<Item = (f64, f64)>) -> (Vec<f64>, Growth) {
    let (mut all, mut rates) = (Growth { count: 0.0, seconds: 0.0 }, Vec::new());
    for (seconds, count) in steps.filter(|(seconds, count)| *seconds > 0.0 && *count >= 0.0) {
        all.seconds += seconds;
        all.count += count;
        rates.push(count / seconds);
    }
    rates.retain(|rate| rate.is_finite());
    (rates, all)
}

#[cfg(test)]
mod tests {
    use super::{Growth, Metric};

    #[test]
    fn a_counter_is_a_rate_also_if_it_was_read_at_odd_times_or_began_anew() {
        let metric = Metric::counter(&[(0.0, 100.0), (1.0, 110.0), (3.0, 150.0)]).unwrap();
        assert_eq!((metric.samples(), metric.value()), (&[10.0, 20.0][..], 50.0 / 3.0));
        let metric =
            Metric::counter(&[(0.0, 100.0), (1.0, 110.0), (2.0, 5.0), (3.0, 7.0)]).unwrap();
        assert_eq!((metric.samples(), metric.value()), (&[10.0, 2.0][..], 6.0));
        assert_eq!(metric.growth(), Some(Growth { count: 12.0, seconds: 2.0 }));
        assert_eq!(Metric::share(&[(0.0, 1.0), (2.0, 2.0)]).unwrap().growth(), None);
        assert_eq!(Metric::counter(&[(0.0, 1.0)]), None);
        assert_eq!(Metric::levels(vec![f64::NAN, 2.0, 4.0]).unwrap().value(), 3.0);
        assert_eq!(Metric::levels(vec![f64::INFINITY]), None);
        assert_eq!(Metric::levels(vec![f64::MAX, f64::MAX]), None);
        assert_eq!(Metric::counter(&[(1.0, 1.0), (1.0, 2.0)]), None, "no time passed");
    }
}

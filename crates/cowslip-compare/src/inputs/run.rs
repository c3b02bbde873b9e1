//! A run and its metrics, whatever they were read from.

use std::collections::BTreeMap;

/// One run of a program or one recording of a machine.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Run {
    /// How it is known to the user: its file.
    pub name: String,
    /// What is known of the machine and the command.
    pub facts: BTreeMap<String, String>,
    /// By name.
    pub metrics: BTreeMap<String, Metric>,
    /// Columns that are no numbers, and values that are not finite.
    pub left_out: usize,
}

/// What was measured of one thing in one run.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    samples: Vec<f64>,
    value: f64,
    /// Whether it may be a counter: its source does not say.
    pub(super) is_untyped: bool,
}

impl Run {
    /// One without metrics.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// With a value of the run as a whole.
    pub fn with(mut self, metric: &str, value: f64) -> Self {
        self.add(metric, Metric::levels(vec![value]));
        self
    }

    pub(super) fn add(&mut self, name: &str, metric: Option<Metric>) {
        if let Some(metric) = metric {
            self.metrics.insert(name.to_owned(), metric);
        }
    }
}

impl Metric {
    /// Of a level: its samples, and their mean for the run. `None` if no sample is finite.
    pub fn levels(mut samples: Vec<f64>) -> Option<Self> {
        samples.retain(|value| value.is_finite());
        let value = samples.iter().sum::<f64>() / samples.len() as f64;
        Self::new(samples, value)
    }

    /// `None` without samples, or if their sum is beyond all numbers.
    fn new(samples: Vec<f64>, value: f64) -> Option<Self> {
        value.is_finite().then_some(Self { samples, value, is_untyped: false })
    }

    /// Of a counter that was read at times in seconds: its rate between two reads, and over all for the run.
    /// `None` of fewer than two reads. What falls is a counter that began anew.
    pub fn counter(reads: &[(f64, f64)]) -> Option<Self> {
        Self::steps(reads.windows(2).map(|two| (two[1].0 - two[0].0, two[1].1 - two[0].1)))
    }

    /// Of seconds, and what was counted in them, which can be neither none nor less.
    pub(super) fn steps(steps: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let (mut time, mut total, mut samples) = (0.0, 0.0, Vec::new());
        for (seconds, growth) in steps.filter(|(seconds, growth)| *seconds > 0.0 && *growth >= 0.0)
        {
            time += seconds;
            total += growth;
            samples.push(growth / seconds);
        }
        samples.retain(|rate| rate.is_finite());
        Self::new(samples, total / time)
    }

    pub(super) fn untyped(self) -> Self {
        Self { is_untyped: true, ..self }
    }

    /// In the order of time.
    pub fn samples(&self) -> &[f64] {
        &self.samples
    }

    /// Of the run as a whole.
    pub fn value(&self) -> f64 {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::Metric;

    #[test]
    fn a_counter_is_a_rate_also_if_it_was_read_at_odd_times_or_began_anew() {
        let metric = Metric::counter(&[(0.0, 100.0), (1.0, 110.0), (3.0, 150.0)]).unwrap();
        assert_eq!((metric.samples(), metric.value()), (&[10.0, 20.0][..], 50.0 / 3.0));
        let metric =
            Metric::counter(&[(0.0, 100.0), (1.0, 110.0), (2.0, 5.0), (3.0, 7.0)]).unwrap();
        assert_eq!((metric.samples(), metric.value()), (&[10.0, 2.0][..], 6.0));
        assert_eq!(Metric::counter(&[(0.0, 1.0)]), None);
        assert_eq!(Metric::levels(vec![f64::NAN, 2.0, 4.0]).unwrap().value(), 3.0);
        assert_eq!(Metric::levels(vec![f64::INFINITY]), None);
        assert_eq!(Metric::levels(vec![f64::MAX, f64::MAX]), None);
        assert_eq!(Metric::counter(&[(1.0, 1.0), (1.0, 2.0)]), None, "no time passed");
    }
}

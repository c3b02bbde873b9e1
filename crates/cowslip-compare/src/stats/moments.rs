//! Mean and variance.

use super::Unusable;
use super::sum::Sum;

/// Beyond this, squares overflow.
const LARGEST: f64 = 1e150;

/// Count, mean and variance of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    pub(super) count: f64,
    pub(super) mean: Sum,
    /// Variance of the sample: divided by n − 1.
    pub(super) variance: f64,
}

impl Moments {
    /// Two passes, each with compensated sums: values far from zero keep their variance.
    pub fn from_values(values: &[f64]) -> Result<Self, Unusable> {
        if values.len() < 2 {
            return Err(Unusable::TooFew);
        }
        if !values.iter().all(|value| value.abs() < LARGEST) {
            return Err(Unusable::NotFinite);
        }
        let count = values.len() as f64;
        if values.iter().all(|value| *value == values[0]) {
            let mean = Sum { high: values[0], low: 0.0 };
            return Ok(Self { count, mean, variance: 0.0 });
        }
        let mean = Sum::from_values(values.iter().copied()).over(count);
        let residual = |value: &f64| (value - mean.high) - mean.low;
        let squares = Sum::from_values(values.iter().map(residual).map(|value| value * value));
        Ok(Self { count, mean, variance: squares.high / (count - 1.0) })
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.mean.high + self.mean.low
    }

    /// The standard deviation of the sample, with n − 1.
    pub fn deviation(&self) -> f64 {
        self.variance.sqrt()
    }

    /// The mean's own variance.
    pub(super) fn of_mean(&self) -> f64 {
        self.variance / self.count
    }

    /// This mean less the other, even if both are large and close.
    pub(super) fn minus(&self, other: &Self) -> f64 {
        (self.mean.high - other.mean.high) + (self.mean.low - other.mean.low)
    }
}

//! Welch's t-test for a difference of two means, without the assumption of equal variances.

use serde::Serialize;

use super::{Moments, Unusable, two_sided_p, two_sided_quantile};

/// The outcome of Welch's test (Welch 1947; the degrees of freedom by Satterthwaite 1946).
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Welch {
    /// (mean of the first − mean of the second) / standard error.
    pub t: f64,
    /// Degrees of freedom, a fraction in general.
    pub degrees: f64,
    /// Two-sided.
    pub p: f64,
    /// Mean of the first − mean of the second, in the metric's unit.
    pub difference: f64,
    /// Standard error of the difference.
    pub standard_error: f64,
    /// Confidence interval of the difference.
    pub interval: (f64, f64),
}

impl Welch {
    /// Compares two samples; `alpha` is one minus the confidence of the interval.
    ///
    /// ```
    /// use cowslip_compare::stats::{Moments, Welch};
    /// let good = Moments::from_values(&[1.0, 2.0, 3.0])?;
    /// let bad = Moments::from_values(&[5.0, 7.0, 9.0])?;
    /// let welch = Welch::new(&good, &bad, 0.05)?;
    /// assert!((welch.t + 3.872_983_346_207_417).abs() < 1e-14 && welch.p < 0.05);
    /// # Ok::<(), cowslip_compare::stats::Unusable>(())
    /// ```
    pub fn new(first: &Moments, second: &Moments, alpha: f64) -> Result<Self, Unusable> {
        let standard_error = (first.of_mean() + second.of_mean()).sqrt();
        if standard_error == 0.0 {
            return Err(Unusable::NoVariation);
        }
        let degrees = degrees(first, second);
        let difference = first.minus(second);
        let t = difference / standard_error;
        let half = two_sided_quantile(alpha, degrees) * standard_error;
        Ok(Self {
            t,
            degrees,
            p: two_sided_p(t, degrees),
            difference,
            standard_error,
            interval: (difference - half, difference + half),
        })
    }
}

/// Satterthwaite's degrees of freedom of a difference of means.
fn degrees(first: &Moments, second: &Moments) -> f64 {
    let sum = first.of_mean() + second.of_mean();
    let part = |moments: &Moments| (moments.of_mean() / sum).powi(2) / (moments.count - 1.0);
    1.0 / (part(first) + part(second))
}

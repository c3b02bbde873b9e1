//! Effect sizes: how large a difference is.

use serde::Serialize;

use super::gamma::half_step;
use super::noncentral::noncentrality;
use super::{Moments, Welch, two_sided_quantile};

/// A number and its possible range.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Estimate {
    /// The best guess.
    pub value: f64,
    /// The confidence interval, if it is bounded.
    pub interval: Option<(f64, f64)>,
}

impl Estimate {
    /// Returns true if the range leaves out zero; without a range, if the number is not zero.
    pub fn is_certain(&self) -> bool {
        self.interval.map_or(self.value != 0.0, |(low, high)| low > 0.0 || high < 0.0)
    }
}

/// The difference of the means, bad less good, with Welch's interval unless both sides are constant.
pub(crate) fn difference(good: &[f64], bad: &[f64], alpha: f64) -> Estimate {
    let mean = |side: &[f64]| side.iter().sum::<f64>() / side.len() as f64;
    let moments = |side: &[f64]| Moments::from_values(side).ok();
    let welch =
        moments(good).zip(moments(bad)).and_then(|(good, bad)| Welch::new(&bad, &good, alpha).ok());
    Estimate { value: mean(bad) - mean(good), interval: welch.map(|welch| welch.interval) }
}

/// Hedges' g* of the second sample over the first: positive if the second mean is greater.
///
/// The difference of the means in units of the standard deviation, without the bias of small samples. The deviation is
/// the root of the mean of both variances, as fits Welch's test; the interval is that of the noncentral t distribution
/// (Delacre, Lakens, Ley, Liu and Leys 2021). `alpha` is one minus the confidence. With one degree of freedom (two
/// values that vary beside some that do not) it is zero, without an interval.
pub fn hedges_g(first: &Moments, second: &Moments, welch: &Welch, alpha: f64) -> Estimate {
    let deviation = ((first.variance + second.variance) / 2.0).sqrt();
    let sum = first.variance + second.variance;
    let part = |moments: &Moments| (moments.variance / sum).powi(2) / (moments.count - 1.0);
    let df = 1.0 / (part(first) + part(second));
    // One degree of freedom or, rounded, hardly less: there the factor is zero.
    let unbiased = half_step((df - 1.0).max(0.0) / 2.0) / (df / 2.0).sqrt();
    let per_t = welch.standard_error / deviation * unbiased;
    let bound = |probability| noncentrality(-welch.t, df, probability) * per_t;
    let interval = (per_t > 0.0).then(|| (bound(1.0 - alpha / 2.0), bound(alpha / 2.0)));
    Estimate { value: -welch.t * per_t, interval }
}

/// The second mean over the first, less one, with the interval of Fieller (1954), which has no bounds if the
/// first mean may be zero. `None` if the first mean is zero.
pub fn relative_change(
    first: &Moments,
    second: &Moments,
    welch: &Welch,
    alpha: f64,
) -> Option<Estimate> {
    let (from, to) = (first.mean(), second.mean());
    if from == 0.0 {
        return None;
    }
    let quantile = two_sided_quantile(alpha, welch.degrees);
    let (of_from, of_to) =
        (quantile.powi(2) * first.of_mean(), quantile.powi(2) * second.of_mean());
    let certain = from * from - of_from;
    let root = of_to * from * from + of_from * to * to - of_from * of_to;
    let interval = (certain > 0.0).then(|| {
        // A change of a negative mean has the direction of the value, not of its size.
        let sign = from.signum();
        let bound = |side: f64| sign * ((from * to + sign * side * root.sqrt()) / certain - 1.0);
        (bound(-1.0), bound(1.0))
    });
    Some(Estimate { value: -welch.difference / from.abs(), interval })
}

//! The power of a test, and the number of runs that it needs.

use super::noncentral::{bisect, noncentral_cdf};
use super::{Moments, Welch, two_sided_quantile};

/// The wanted probability of finding an effect.
pub const WANTED_POWER: f64 = 0.8;
/// A larger number of runs is impractical.
const MOST_RUNS: u32 = 1_000_000;

/// The probability that Welch's test finds a difference of `delta` standard errors at level `alpha`.
pub fn power(delta: f64, degrees: f64, alpha: f64) -> f64 {
    beyond(two_sided_quantile(alpha, degrees), degrees, delta)
}

/// The probability of a |T| beyond `quantile`.
fn beyond(quantile: f64, degrees: f64, delta: f64) -> f64 {
    let below = |t| noncentral_cdf(t, degrees, delta);
    1.0 - below(quantile) + below(-quantile)
}

/// The smallest difference of the means, in the metric's unit, that a test with these samples' variances and
/// sizes finds with probability [`WANTED_POWER`].
pub fn detectable_difference(welch: &Welch, alpha: f64) -> f64 {
    let quantile = two_sided_quantile(alpha, welch.degrees);
    let is_small = |delta: f64| beyond(quantile, welch.degrees, delta) < WANTED_POWER;
    let mut most = 4.0;
    while is_small(most) {
        most *= 2.0;
    }
    let delta = bisect(0.0, most, is_small);
    delta * welch.standard_error
}

/// The number of values a side that find a true `difference` with probability [`WANTED_POWER`], if the variances are
/// those of these samples; `None` if it is zero, or needs more than a million.
pub fn runs_needed(first: &Moments, second: &Moments, difference: f64, alpha: f64) -> Option<u32> {
    let (v1, v2) = (first.variance, second.variance);
    let is_enough = |runs: u32| {
        let n = f64::from(runs);
        let degrees = (n - 1.0) * (v1 + v2).powi(2) / (v1 * v1 + v2 * v2);
        let delta = difference.abs() / ((v1 + v2) / n).sqrt();
        power(delta, degrees, alpha) >= WANTED_POWER
    };
    if difference == 0.0 {
        return None;
    }
    let mut high = 2;
    while !is_enough(high) {
        high = high.checked_mul(2).filter(|runs| *runs <= MOST_RUNS)?;
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        *(if is_enough(middle) { &mut high } else { &mut low }) = middle;
    }
    Some(high)
}

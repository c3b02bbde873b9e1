//! The noncentral t distribution: that of t with an effect.

use std::f64::consts::SQRT_2;

/// Weights below e⁻²⁴ are left out.
const DEPTH: f64 = 24.0;
const MOST_STEPS: f64 = 4_000.0;

/// P(T ≤ `t`) with `df` degrees of freedom and noncentrality `delta`: to 1e-9, and to a
/// thousandth for |t| beyond a thousand.
///
/// T = (Z + δ) / s, and the density of u = ln s is proportional to exp(df · (u − e²ᵘ / 2)): smooth and
/// falling off fast on both sides, so that the trapezoidal rule converges exponentially. Its weights are
/// normalised by their own sum.
pub fn noncentral_cdf(t: f64, df: f64, delta: f64) -> f64 {
    let wide = (DEPTH / df).sqrt();
    let (low, high) = (-(1.2 * wide + DEPTH / df), wide);
    let spread = 1.0 / (2.0 * df).sqrt();
    let step = (spread / 2.0).min(0.5 / t.abs().max(delta.abs()).max(1.0)).min(0.25);
    let steps = ((high - low) / step).ceil().min(MOST_STEPS);
    let (mut weights, mut below) = (0.0, 0.0);
    for index in 0..=steps as u32 {
        let u = low + (high - low) * f64::from(index) / steps;
        let s = u.exp();
        let weight = (df * (u - (s * s - 1.0) / 2.0)).exp();
        weights += weight;
        below += weight * 0.5 * libm::erfc((delta - t * s) / SQRT_2);
    }
    below / weights
}

/// The noncentrality with which T is at most `t` with probability `probability`.
pub(super) fn noncentrality(t: f64, df: f64, probability: f64) -> f64 {
    let mut reach = 4.0 * (1.0 + t.abs() / (2.0 * df).sqrt());
    while noncentral_cdf(t, df, t - reach) < probability
        || noncentral_cdf(t, df, t + reach) > probability
    {
        reach *= 2.0;
    }
    bisect(t - reach, t + reach, |delta| noncentral_cdf(t, df, delta) > probability)
}

/// The place where `is_below` turns from true to false.
pub(super) fn bisect(mut low: f64, mut high: f64, is_below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..30 {
        let middle = low + (high - low) / 2.0;
        *(if is_below(middle) { &mut low } else { &mut high }) = middle;
    }
    low + (high - low) / 2.0
}

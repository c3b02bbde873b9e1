//! Values of all runs of both sides, and sums of them.

use crate::inputs::Run;

/// A value of each good and of each bad run.
pub(super) type Both = [Vec<f64>; 2];

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub(super) fn added(both: &Both) -> f64 {
    mean(&both[1]) - mean(&both[0])
}

pub(super) fn means([good, bad]: &Both) -> (f64, f64) {
    (mean(good), mean(bad))
}

/// The count of a counter, also where that is known for the run as a whole only.
pub(super) fn count(run: &Run, name: &str) -> Option<f64> {
    let metric = run.metrics.get(name)?;
    Some(metric.growth().map_or(metric.value(), |growth| growth.count))
}

pub(super) fn zip(a: &Both, b: &Both, of: impl Fn(f64, f64) -> f64) -> Both {
    let side = |which: usize| a[which].iter().zip(&b[which]).map(|(a, b)| of(*a, *b)).collect();
    [side(0), side(1)]
}

pub(super) fn sum(a: &Both, b: &Both) -> Both {
    zip(a, b, |a, b| a + b)
}

pub(super) fn less(a: &Both, b: &Both) -> Both {
    zip(a, b, |a, b| a - b)
}

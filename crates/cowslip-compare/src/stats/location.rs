//! The middle of paired differences, without the assumption that they are normally distributed.

use super::{Estimate, Unusable};

/// The estimate of Hodges and Lehmann (1963), the median of all means of two differences, with the interval that
/// inverts Wilcoxon's signed-rank test. A few wild values move neither far. `alpha` is one minus the confidence;
/// the interval is absent if there are too few differences for that.
///
/// ```
/// use cowslip_compare::stats::location;
/// let middle = location(&[1.0, 2.0, 3.0, 4.0, 5.0, 600.0], 0.05)?;
/// assert_eq!((middle.value, middle.interval), (3.5, Some((1.0, 600.0))));
/// # Ok::<(), cowslip_compare::stats::Unusable>(())
/// ```
pub fn location(differences: &[f64], alpha: f64) -> Result<Estimate, Unusable> {
    if differences.is_empty() {
        return Err(Unusable::TooFew);
    }
    if !differences.iter().all(|difference| difference.is_finite()) {
        return Err(Unusable::NotFinite);
    }
    let count = differences.len();
    let pairs = (0..count).flat_map(|i| (i..count).map(move |j| (i, j)));
    let mut means: Vec<f64> =
        pairs.map(|(i, j)| f64::midpoint(differences[i], differences[j])).collect();
    means.sort_by(f64::total_cmp);
    let last = means.len() - 1;
    let value = f64::midpoint(means[last / 2], means[last.div_ceil(2)]);
    let outside = values_outside(count, alpha / 2.0);
    let interval = outside.checked_sub(1).map(|at| (means[at], means[last - at]));
    Ok(Estimate { value, interval })
}

/// The number of values that the sum of positive ranks can have in its lower tail of probability `tail`.
fn values_outside(count: usize, tail: f64) -> usize {
    let mut chance = vec![0.0; count * (count + 1) / 2 + 1];
    chance[0] = 1.0;
    for rank in 1..=count {
        for sum in (0..chance.len()).rev() {
            let with = if sum >= rank { chance[sum - rank] } else { 0.0 };
            chance[sum] = (chance[sum] + with) / 2.0;
        }
    }
    let mut below = 0.0;
    let is_outside = |chance: &&f64| {
        below += **chance;
        below <= tail
    };
    chance.iter().take_while(is_outside).count()
}

//! Quantiles of a sample, and the median among them.

/// The quantile of sorted values at `share` (0 to 1), between the two values around it, as in most programs (Hyndman
/// and Fan's seventh). `None` without values.
///
/// ```
/// use cowslip_compare::stats::quantile;
/// assert_eq!(quantile(&[1.0, 2.0, 3.0, 10.0], 0.25), Some(1.75));
/// ```
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let at = share * sorted.len().checked_sub(1)? as f64;
    let below = sorted[at.floor() as usize];
    Some(below + (sorted[at.ceil() as usize] - below) * at.fract())
}

/// The middle of values in any order, or the mean of the two in the middle. `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        let sorted = [1.0, 2.0, 3.0, 10.0];
        let quantiles = [0.0, 0.25, 0.5, 1.0].map(|share| quantile(&sorted, share));
        assert_eq!(quantiles, [1.0, 1.75, 2.5, 10.0].map(Some));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }
}

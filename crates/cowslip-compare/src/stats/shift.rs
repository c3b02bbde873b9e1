//! The shift between two samples, robust against outliers.

use super::rank::smallest_unsurprising;
use super::{Estimate, median};

/// More pairs take too long to sort.
const MOST_PAIRS: usize = 4_000_000;

/// The median of all differences of a value of `second` and one of `first` (Hodges and Lehmann 1963), with the shifts
/// that the rank test does not reject at `alpha` (Moses 1953). `None` without values, or with more than four million
/// pairs.
///
/// ```
/// let shift = cowslip_compare::stats::shift(&[1.0, 2.0, 3.0, 4.0], &[6.0, 7.0, 8.0, 99.0], 0.05).unwrap();
/// assert_eq!((shift.value, shift.interval), (5.0, Some((2.0, 98.0))));
/// ```
pub fn shift(first: &[f64], second: &[f64], alpha: f64) -> Option<Estimate> {
    if first.len().checked_mul(second.len()).is_none_or(|pairs| pairs > MOST_PAIRS) {
        return None;
    }
    let pairs = second.iter().flat_map(|to| first.iter().map(move |from| to - from));
    let mut differences: Vec<f64> = pairs.collect();
    differences.sort_by(f64::total_cmp);
    let rejected = smallest_unsurprising(first.len(), second.len(), alpha);
    let interval = rejected
        .checked_sub(1)
        .map(|outer| (differences[outer], differences[differences.len() - 1 - outer]));
    Some(Estimate { value: median(differences)?, interval })
}

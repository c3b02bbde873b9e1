//! Rows of a few values: their median, maximum and number.

use crate::report::{Report, Row};

/// The middle of `values`, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let above = *sorted.get(half)?;
    Some(if sorted.len().is_multiple_of(2) { (sorted[half - 1] + above) / 2.0 } else { above })
}

/// Bounds of the median of the distribution that `values` are drawn from, with 95 % confidence and whatever the
/// distribution: two of the values, by rank. `None` for fewer than six.
pub(crate) fn median_bounds(values: &[f64]) -> Option<(f64, f64)> {
    const EACH_SIDE: f64 = 0.025;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    // The probability that this many values are below the median: like heads of n coins.
    let mut likely = 0.5f64.powi(n as i32);
    let (mut below, mut rank) = (likely, 0);
    while below <= EACH_SIDE {
        rank += 1;
        likely *= (n - rank + 1) as f64 / rank as f64;
        below += likely;
    }
    let low = sorted.get(rank.checked_sub(1)?)?;
    Some((*low, sorted[n - rank]))
}

/// Adds `p50` and `max` of durations in ns as copies of `like`.
pub(crate) fn push_durations(report: &mut Report, like: &Row, values: &[f64]) {
    let worst = values.iter().copied().reduce(f64::max);
    for (stat, value) in [("p50", median(values)), ("max", worst)] {
        if let Some(value) = value {
            let row = Row { stat: stat.to_owned(), value: Some(value), unit: "ns", ..like.clone() };
            report.row(row.n(values.len() as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    /// The ranks are those of tables of the sign test.
    #[test]
    fn bounds_of_a_median_are_those_of_the_sign_test() {
        let bounds = |n: usize| median_bounds(&(1..=n).map(|rank| rank as f64).collect::<Vec<_>>());
        assert_eq!((bounds(0), bounds(5)), (None, None));
        assert_eq!(bounds(6), Some((1.0, 6.0)));
        assert_eq!(bounds(10), Some((2.0, 9.0)));
        assert_eq!(bounds(25), Some((8.0, 18.0)));
        assert_eq!(bounds(100), Some((40.0, 61.0)));
        assert_eq!(median_bounds(&[3.0, 9.0, 1.0, 2.0, 8.0, 7.0]), Some((1.0, 9.0)));
    }
}

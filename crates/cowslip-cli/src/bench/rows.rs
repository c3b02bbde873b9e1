//! Few values as rows: a median, the worst, how many.

use crate::output::report::{Report, Row};

/// The middle of `values`, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let above = *sorted.get(half)?;
    Some(if sorted.len().is_multiple_of(2) { (sorted[half - 1] + above) / 2.0 } else { above })
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
}

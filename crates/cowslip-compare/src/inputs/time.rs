//! Times of RFC 3339, and counts by the second.

use std::collections::BTreeMap;

use chrono::DateTime;

use super::Metric;

/// The seconds since 1970 of a time such as `2017-05-09T14:34:45.625742514+02:00`.
pub(super) fn rfc3339(text: &str) -> Option<f64> {
    let time = DateTime::parse_from_rfc3339(text).ok()?;
    Some(time.timestamp() as f64 + f64::from(time.timestamp_subsec_nanos()) / 1e9)
}

/// A counter by its additions at times in seconds: its rates between the seconds in which it grew.
pub(super) fn counted(additions: &[(f64, f64)]) -> Option<Metric> {
    let mut sums: BTreeMap<i64, f64> = BTreeMap::new();
    for (time, count) in additions {
        *sums.entry(time.floor() as i64).or_default() += count;
    }
    let mut before = sums.keys().next()? - 1;
    let steps: Vec<(f64, f64)> = sums
        .into_iter()
        .map(|(second, count)| {
            let step = (second - before) as f64;
            before = second;
            (step, count)
        })
        .collect();
    Metric::counts(steps.into_iter())
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn additions_of_a_second_count_together_and_empty_seconds_lower_the_rate() {
        let metric = counted(&[(10.1, 2.0), (10.9, 4.0), (12.5, 8.0)]).unwrap();
        assert_eq!((metric.samples(), metric.value()), (&[6.0, 4.0][..], 14.0 / 3.0));
        assert_eq!(counted(&[]), None);
    }
}

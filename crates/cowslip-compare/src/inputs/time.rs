//! Times of RFC 3339, and counts by the second.

use std::collections::BTreeMap;

use super::Metric;

/// The seconds since 1970 of a time such as `2017-05-09T14:34:45.625742514+02:00`.
pub(super) fn rfc3339(text: &str) -> Option<f64> {
    let part = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute) = (part(11, 13)?, part(14, 16)?);
    let rest = text.get(17..)?;
    let zone = rest.find(['Z', 'z', '+', '-'])?;
    let second: f64 = rest[..zone].parse().ok().filter(|second| (0.0..61.0).contains(second))?;
    let ahead = match rest.as_bytes()[zone] {
        b'Z' | b'z' => 0,
        sign => {
            let at = 17 + zone + 1;
            let minutes = part(at, at + 2)? * 60 + part(at + 3, at + 5)?;
            if sign == b'-' { -minutes } else { minutes }
        }
    };
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let minutes = (days(year, month, day) * 24 + hour) * 60 + minute - ahead;
    Some(minutes as f64 * 60.0 + second)
}

/// Days from 1970 in the Gregorian calendar; a year begins in March, so that a leap day is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year
        - 719_468
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
    use super::{counted, rfc3339};

    #[test]
    fn times_have_zones_and_fractions() {
        assert_eq!(rfc3339("1970-01-01T00:00:00Z"), Some(0.0));
        assert_eq!(rfc3339("2000-02-29T12:00:00.5Z"), Some(951_825_600.5));
        assert_eq!(rfc3339("2017-05-09T14:34:45+02:00"), rfc3339("2017-05-09T12:34:45Z"));
        assert_eq!(rfc3339("2026-11-30T13:42:24Z"), Some(1_796_046_144.0));
        for text in [
            "",
            "2017-05-09",
            "2017-13-09T14:34:45Z",
            "2017-05-09T14:34:99Z",
            "2017-05-09T14:34:45",
            "é017-05-09T1",
        ] {
            assert_eq!(rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn additions_of_a_second_count_together_and_empty_seconds_lower_the_rate() {
        let metric = counted(&[(10.1, 2.0), (10.9, 4.0), (12.5, 8.0)]).unwrap();
        assert_eq!((metric.samples(), metric.value()), (&[6.0, 4.0][..], 14.0 / 3.0));
        assert_eq!(counted(&[]), None);
    }
}

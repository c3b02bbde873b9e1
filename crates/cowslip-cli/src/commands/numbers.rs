//! Numbers and sizes on the command line: an invalid value is answered with the range.

use std::ops::RangeInclusive;

use cowslip::units::ByteCount;

/// A range that extends beyond this is shown without an end.
const ENDLESS: i128 = i32::MAX as i128;

/// A whole number within a range.
pub(crate) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Copy + Into<i128> + TryFrom<i128>,
{
    let (low, high): (i128, i128) = ((*range.start()).into(), (*range.end()).into());
    move |text| {
        let number = text.parse::<i128>().ok().filter(|number| (low..=high).contains(number));
        let wanted = || match high < ENDLESS {
            true => format!("a whole number from {low} to {high} is wanted"),
            false => format!("a whole number from {low} on is wanted"),
        };
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(wanted)
    }
}

/// A number within a range.
pub(crate) fn between(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .ok_or_else(|| format!("a number from {} to {} is wanted", range.start(), range.end()))
    }
}

/// A number above zero, up to a limit.
pub(crate) fn positive(most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text
            .parse()
            .ok()
            .filter(|number: &f64| 0.0 < *number && *number <= most && number.is_finite());
        number.ok_or_else(|| match most.is_finite() {
            true => format!("a number above 0, {most} at most, is wanted"),
            false => "a number above 0 is wanted".to_owned(),
        })
    }
}

/// A size, which may be zero.
pub(crate) fn any_byte_count(text: &str) -> Result<ByteCount, String> {
    ByteCount::parse(text).ok_or_else(|| "a size such as 0, 512K or 4MiB is wanted".into())
}

/// A size above zero.
pub(crate) fn byte_count(text: &str) -> Result<ByteCount, String> {
    match ByteCount::parse(text) {
        Some(count) if count.0 > 0 => Ok(count),
        _ => Err("a size such as 512M or 8GiB is wanted".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_answered_with_the_range() {
        let said = "a whole number from 1 to 100 is wanted";
        for wrong in
            ["abc", "", "0", "101", "1.5", "-3", "99999999999999999999999999999999999999999"]
        {
            assert_eq!(whole(1..=100u8)(wrong), Err(said.to_owned()), "{wrong}");
        }
        assert_eq!(whole(1..=100u8)("100"), Ok(100));
        let said = "a whole number from 1 on is wanted";
        assert_eq!(whole(1..=i32::MAX)("-5"), Err(said.to_owned()));
        assert_eq!(whole(0..=u64::MAX)("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(between(0.0..=1.0)("nan"), Err("a number from 0 to 1 is wanted".to_owned()));
        assert_eq!(between(0.0..=1.0)("0.5"), Ok(0.5));
        let said = "a number above 0, 100 at most, is wanted";
        assert_eq!(positive(100.0)("-1"), Err(said.to_owned()));
        assert_eq!(
            (positive(100.0)("100"), positive(f64::INFINITY)("inf").is_err()),
            (Ok(100.0), true)
        );
    }
}

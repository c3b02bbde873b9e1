//! Numbers for people.

const SIGNIFICANT: i32 = 3;
/// Numbers between these are written out.
const SHORTEST: f64 = 1e-6;
const LONGEST: f64 = 1e15;
/// From here on a number of the largest unit would be longer than the number without one.
const LONGEST_IN_LAST: f64 = 1e6;

/// `value` with three significant digits and the unit that fits it.
///
/// `unit` is that of a row: `ns`, `bytes`, `1/s`, `ratio`, `pages`; any other is not shown.
///
/// ```
/// use cowslip_report::units::human;
///
/// assert_eq!(human(61_234_567.0, "ns"), "61.2 ms");
/// assert_eq!(human(1_500_000.0, "bytes"), "1.43 MiB");
/// ```
pub fn human(value: f64, unit: &str) -> String {
    match unit {
        "ns" => scaled(value, 1_000.0, &[" ns", " µs", " ms", " s"]),
        "bytes" => scaled(value, 1_024.0, &[" B", " KiB", " MiB", " GiB", " TiB"]),
        "1/s" => scaled(value, 1_000.0, &["/s", " k/s", " M/s", " G/s"]),
        "ratio" => format!("{}×", digits(value, SIGNIFICANT)),
        "pages" => format!("{} pages", digits(value, SIGNIFICANT)),
        _ => digits(value, SIGNIFICANT),
    }
}

/// A size in bytes, exact if it is a whole number of its unit.
pub fn size(bytes: u64) -> String {
    human(bytes as f64, "bytes")
}

/// `value` with that many significant digits; whole numbers in full. A number too long for a column is scientific.
pub fn digits(value: f64, significant: i32) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if !(SHORTEST..LONGEST).contains(&size) => format!("{value:.2e}"),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        size => format!("{value:.*}", decimals(size, significant)),
    }
}

/// `value` with this many decimals; a value that rounds to zero has no sign.
pub fn fixed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.strip_prefix('-') {
        Some(size) if size.bytes().all(|byte| matches!(byte, b'0' | b'.')) => size.to_owned(),
        _ => text,
    }
}

fn decimals(size: f64, significant: i32) -> usize {
    // Zero has no digit before the point, and no logarithm.
    let behind = significant.saturating_sub(size.log10().floor() as i32 + 1);
    // A number that rounds up to another digit before the point has one fewer behind it.
    let is_rounded_up = size * 10_f64.powi(behind) >= 10_f64.powi(significant) - 0.5;
    usize::try_from(behind - i32::from(is_rounded_up)).unwrap_or(0)
}

fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let (mut unit, mut shown) = (0, value);
    // Uses the rounded number: 999,999 is 1.00 M, not 1000 k.
    let is_too_long = |shown: f64| {
        let decimals = decimals(shown.abs(), SIGNIFICANT) as i32;
        (shown.abs() * 10_f64.powi(decimals)).round() / 10_f64.powi(decimals) >= base
    };
    while unit + 1 < units.len() && is_too_long(shown) {
        shown /= base;
        unit += 1;
    }
    if shown.abs() >= LONGEST_IN_LAST {
        (unit, shown) = (0, value);
    }
    digits(shown, SIGNIFICANT) + units[unit]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit_the_value() {
        assert_eq!(human(1_000.4, "ns"), "1.00 µs");
        assert_eq!(human(189_000.0, "ns"), "189 µs");
        assert_eq!(human(61_234_567.0, "ns"), "61.2 ms");
        assert_eq!(human(0.0, "ns"), "0 ns");
        assert_eq!(human(1.5e6, "1/s"), "1.50 M/s");
        assert_eq!(human(78.66, "ratio"), "78.7×");
        assert_eq!(human(0.253, "ratio"), "0.253×");
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size(1_500_000), "1.43 MiB");
        assert_eq!(digits(1.0523, 4), "1.052");
        assert_eq!(digits(0.001_234, 3), "0.00123");
    }

    #[test]
    fn numbers_fit_a_column_and_the_same_are_written_alike() {
        assert_eq!(human(1e9 - 0.1, "1/s"), "1.00 G/s");
        assert_eq!(human(1e9 + 0.1, "1/s"), "1.00 G/s");
        assert_eq!(human(1e140, "1/s"), "1.00e140/s");
        assert_eq!(human(-1e-140, "1/s"), "-1.00e-140/s");
        assert_eq!(human(1e140, "bytes"), "1.00e140 B");
        assert_eq!(human(1023.99 * 1024.0, "bytes"), "1.00 MiB");
        assert_eq!(human(-999_999.0, "1/s"), "-1.00 M/s");
        assert_eq!((fixed(-0.001, 2), fixed(-0.01, 2)), ("0.00".to_owned(), "-0.01".to_owned()));
    }
}

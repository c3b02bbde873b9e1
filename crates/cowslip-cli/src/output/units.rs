//! Numbers as people read them.

use super::report::Ratio;

/// `value` with three significant digits and the unit that fits it.
pub(crate) fn human(value: f64, unit: &str) -> String {
    match unit {
        "ns" => scaled(value, 1_000.0, &[" ns", " µs", " ms", " s"]),
        "bytes" => scaled(value, 1_024.0, &[" B", " KiB", " MiB", " GiB", " TiB"]),
        "1/s" => scaled(value, 1_000.0, &["/s", " k/s", " M/s", " G/s"]),
        "ratio" => format!("{}×", digits(value, 3)),
        "pages" => format!("{} pages", digits(value, 3)),
        _ => digits(value, 3),
    }
}

/// A size in bytes, exact if it is a whole number of its unit.
pub(crate) fn size(bytes: u64) -> String {
    human(bytes as f64, "bytes")
}

/// What was promised about `ratio`, as an inequality.
pub(super) fn bound(ratio: &Ratio) -> String {
    match (ratio.at_least, ratio.at_most) {
        (Some(low), Some(high)) => format!("{low} … {high}"),
        (Some(low), None) => format!("≥ {low}"),
        (None, Some(high)) => format!("≤ {high}"),
        (None, None) => String::new(),
    }
}

/// Whether `ratio` keeps its promise, in a word or two.
pub(super) fn verdict(ratio: &Ratio) -> &'static str {
    match ratio.holds {
        Some(true) => "holds",
        Some(false) => "MISSED",
        None if ratio.value.is_none() => "not measured",
        None => "",
    }
}

/// `value` with that many significant digits; whole numbers in full.
pub(super) fn digits(value: f64, significant: i32) -> String {
    if value.fract() == 0.0 {
        return format!("{value:.0}");
    }
    let before_point = value.abs().log10().floor() as i32 + 1;
    let decimals = usize::try_from(significant - before_point).unwrap_or(0);
    format!("{value:.decimals$}")
}

fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value.abs() >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    digits(value, 3) + units[unit]
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
}

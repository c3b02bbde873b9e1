//! The demo's notation of numbers: each kind in one unit, for comparison at a glance, and no line break between a
//! number and its unit.

/// Milliseconds, with decimals below ten.
pub(crate) fn ms(ns: f64) -> String {
    let ms = ns / 1e6;
    match ms {
        10.0.. => format!("{ms:.0}\u{a0}ms"),
        1.0.. => format!("{ms:.1}\u{a0}ms"),
        _ => format!("{ms:.2}\u{a0}ms"),
    }
}

/// Microseconds, without the unit.
pub(crate) fn tenths_us(ns: f64) -> String {
    format!("{:.1}", ns / 1e3)
}

/// A rate, such as `64k`.
pub(crate) fn thousands(number: f64) -> String {
    format!("{:.0}k", number / 1e3)
}

pub(crate) fn seconds(ns: f64) -> String {
    format!("{:.1}\u{a0}s", ns / 1e9)
}

pub(crate) fn mib(bytes: f64) -> String {
    format!("{}\u{a0}MiB", whole(bytes / f64::from(1 << 20)))
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0}\u{a0}%", share * 100.0)
}

/// Without a fraction, with commas between thousands.
pub(crate) fn whole(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number <= -0.5 { format!("-{text}") } else { text }
}

/// In the notation for the unit of a report's row; durations of saves are in seconds.
pub(crate) fn of_unit(value: f64, unit: &str, metric: &str) -> String {
    match unit {
        "ns" if metric.contains("duration") => seconds(value),
        "ns" if metric.contains("cpu") => format!("{}\u{a0}µs", tenths_us(value)),
        "ns" => ms(value),
        "bytes" => mib(value),
        "ratio" => percent(value),
        "1/s" => format!("{} a second", thousands(value)),
        _ => whole(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_one_unit() {
        assert_eq!(
            [ms(63.4e6), ms(9.96e6), ms(0.9e6)],
            ["63\u{a0}ms", "10.0\u{a0}ms", "0.90\u{a0}ms"]
        );
        assert_eq!([whole(0.4), whole(999.0), whole(-1234.5)], ["0", "999", "-1,234"]);
        assert_eq!(whole(1_234_567.0), "1,234,567");
        assert_eq!(mib(1_610_612_736.0), "1,536\u{a0}MiB");
        assert_eq!(of_unit(8.4e9, "ns", "save_duration"), "8.4\u{a0}s");
    }
}

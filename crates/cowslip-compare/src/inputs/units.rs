//! Numbers and units in the spelling of the tools.

use super::WALL;

/// The metric of a throughput.
const OPERATIONS: &str = "ops_per_second";

/// A finite number, with a decimal point or a decimal comma.
pub(super) fn number(text: &str) -> Option<f64> {
    let is_numeral = |byte: u8| byte.is_ascii_digit() || b"+-.,eE".contains(&byte);
    if !text.bytes().all(is_numeral) {
        return None;
    }
    let value: f64 = text.parse().or_else(|_| text.replacen(',', ".", 1).parse()).ok()?;
    value.is_finite().then_some(value)
}

/// A percentile without zeros behind its point: `99.9` for `99.900000`.
pub(super) fn percentile(text: &str) -> &str {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

/// The seconds of a unit of time.
pub(super) fn seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" | "nanoseconds" => 1e-9,
        "us" | "µs" | "μs" | "usec" | "microseconds" => 1e-6,
        "ms" | "msec" | "milliseconds" => 1e-3,
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "min" => 60.0,
        "h" | "hr" | "hours" => 3600.0,
        "day" => 86400.0,
        _ => return None,
    })
}

/// The metric of a time, a time per operation, or operations per time, and the factor to its unit.
pub(super) fn metric_of(unit: &str) -> Option<(&'static str, f64)> {
    let is_operation =
        |word: &str| matches!(word, "op" | "ops" | "iter" | "iteration" | "iterations" | "call");
    let (above, below) = match unit.split_once('/') {
        Some((above, below)) => (above.trim(), Some(below.trim())),
        None => (unit.trim(), None),
    };
    match (seconds(above), below) {
        (Some(seconds), None) => Some((WALL, seconds)),
        (Some(seconds), Some(below)) if is_operation(below) => Some((WALL, seconds)),
        (None, Some(below)) if is_operation(above) => Some((OPERATIONS, 1.0 / seconds(below)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{metric_of, number, percentile};

    #[test]
    fn numbers_are_finite_and_units_have_factors() {
        assert_eq!(
            (number("1.5"), number("1,5"), number("-2e3")),
            (Some(1.5), Some(1.5), Some(-2e3))
        );
        for text in ["", "nan", "inf", "1e999", "1,234.5", "0x10", "e", "--1"] {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(metric_of("us/op"), Some(("wall_seconds", 1e-6)));
        assert_eq!(metric_of("ops/ms"), Some(("ops_per_second", 1000.0)));
        assert_eq!(metric_of("iter/sec"), Some(("ops_per_second", 1.0)));
        assert_eq!(
            [percentile("50"), percentile("99.000"), percentile("99.90")],
            ["50", "99", "99.9"]
        );
        for unit in ["B/op", "MB/s", "", "/", "ops", "ns/day/op", "s/s"] {
            assert_eq!(metric_of(unit), None, "{unit}");
        }
    }
}

//! Numbers in the cells of a table: with a decimal comma, groups of three digits, a unit, or missing.

use crate::inputs::units::seconds;

/// The character before the fraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decimal {
    Point,
    Comma,
}

/// The content of a cell.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Cell {
    /// Empty, or a word of a tool for a value that it does not have.
    Missing,
    Number {
        value: f64,
        /// The unit of the value, lower case for those that are converted: `seconds`, `bytes`, `percent`.
        unit: String,
    },
    /// A date, or a time of day.
    Date,
    Text,
}

/// Words for values that are not there.
const MISSING: [&str; 19] = [
    "",
    "-",
    "--",
    "?",
    "na",
    "n/a",
    "#n/a",
    "nan",
    "-nan",
    "null",
    "nil",
    "none",
    "undefined",
    "inf",
    "+inf",
    "-inf",
    "infinity",
    "<not counted>",
    "<not supported>",
];

/// Longer units are words.
const LONGEST_UNIT: usize = 12;

/// Powers of 1024 with an `i`, else of 1000, as in the tools of the kernel.
const BYTES: [(&str, f64); 12] = [
    ("B", 1.0),
    ("bytes", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("TiB", 1099511627776.0),
    ("kiB", 1024.0),
];

const MULTIPLES: [(&str, f64); 5] = [("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];

/// The decimal mark of a table, by the cells that can be read in one way only. The error is a cell that has two meanings,
/// where no other cell tells.
pub(super) fn decimal<'a>(cells: impl Iterator<Item = &'a str>) -> Result<Decimal, &'a str> {
    let (mut is_point, mut is_comma, mut ambiguous) = (false, false, None);
    for text in cells.filter(|text| text.contains([',', '.'])) {
        let (digits, unit) = split(text);
        if !is_unit(unit) {
            continue;
        }
        match (number(digits, Decimal::Point), number(digits, Decimal::Comma)) {
            (Some(_), None) => is_point = true,
            (None, Some(_)) => is_comma = true,
            (Some(one), Some(other)) if one != other && digits.contains(',') => {
                ambiguous = ambiguous.or(Some(text));
            }
            _ => {}
        }
    }
    match (is_comma && !is_point, ambiguous.filter(|_| !is_point)) {
        (true, _) => Ok(Decimal::Comma),
        (false, Some(text)) => Err(text),
        (false, None) => Ok(Decimal::Point),
    }
}

impl Cell {
    pub(super) fn new(text: &str, decimal: Decimal) -> Self {
        if MISSING.contains(&text.to_lowercase().as_str()) {
            return Self::Missing;
        }
        if let Some(value) = minutes(text, decimal) {
            return Self::number(value, "seconds");
        }
        if is_date(text) {
            return Self::Date;
        }
        let (digits, unit) = split(text);
        match number(digits, decimal) {
            Some(value) if is_unit(unit) => Self::with_unit(value, unit),
            _ => Self::Text,
        }
    }

    fn number(value: f64, unit: &str) -> Self {
        match value.is_finite() {
            true => Self::Number { value, unit: unit.to_owned() },
            false => Self::Missing,
        }
    }

    fn with_unit(value: f64, unit: &str) -> Self {
        let find = |table: &[(&str, f64)]| {
            table.iter().find(|(name, _)| *name == unit).map(|(_, factor)| value * factor)
        };
        if let Some(seconds) = seconds(unit) {
            return Self::number(value * seconds, "seconds");
        }
        if let Some(bytes) = find(&BYTES) {
            return Self::number(bytes, "bytes");
        }
        match (find(&MULTIPLES), unit) {
            (Some(value), _) => Self::number(value, ""),
            (None, "%") => Self::number(value, "percent"),
            (None, _) => Self::number(value, unit),
        }
    }
}

/// The number and the unit behind it.
fn split(text: &str) -> (&str, &str) {
    let is_part =
        |character: char| character.is_ascii_digit() || ".,'_ \u{a0}\u{202f}+-".contains(character);
    let end = text.find(|character| !is_part(character)).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    // An exponent belongs to the number.
    if let Some(exponent) = unit.strip_prefix(['e', 'E']) {
        let sign = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let len = sign.bytes().take_while(u8::is_ascii_digit).count();
        if len > 0 {
            let end = end + 1 + (exponent.len() - sign.len()) + len;
            return (&text[..end], text[end..].trim_start());
        }
    }
    (digits.trim_end(), unit)
}

fn is_unit(unit: &str) -> bool {
    unit.chars().count() <= LONGEST_UNIT
        && unit.chars().all(|letter| letter.is_alphabetic() || "/%_".contains(letter))
}

/// A number whose groups of digits, if it has some, have three each.
pub(super) fn number(text: &str, decimal: Decimal) -> Option<f64> {
    let (mark, groups) = match decimal {
        Decimal::Point => ('.', [',', '\'', '_', ' ', '\u{a0}', '\u{202f}']),
        Decimal::Comma => (',', ['.', '\'', '_', ' ', '\u{a0}', '\u{202f}']),
    };
    let (sign, rest) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (&text[..1], rest),
        None => ("", text),
    };
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(place) => rest.split_at(place),
        None => (rest, ""),
    };
    let (whole, fraction) = mantissa.split_once(mark).unwrap_or((mantissa, ""));
    let separator = whole.chars().find(|character| groups.contains(character));
    let whole = match separator {
        None => whole.to_owned(),
        Some(separator) => joined(whole, separator)?,
    };
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(&whole) || !is_digits(fraction) || whole.len() + fraction.len() == 0 {
        return None;
    }
    format!("{sign}0{whole}.{fraction}0{exponent}").parse().ok()
}

/// The digits of `1,234,567` alone.
fn joined(whole: &str, separator: char) -> Option<String> {
    let mut parts = whole.split(separator);
    let first = parts.next().filter(|first| (1..=3).contains(&first.len()))?;
    let mut digits = first.to_owned();
    for part in parts {
        if part.len() != 3 {
            return None;
        }
        digits += part;
    }
    Some(digits)
}

/// Seconds of `1:02.5`, as GNU time writes, and of `1m2.5s`, as a shell does.
fn minutes(text: &str, decimal: Decimal) -> Option<f64> {
    let (minutes, seconds) = match text.split_once('m') {
        Some((minutes, rest)) => (minutes, rest.strip_suffix('s')?),
        None => text.split_once(':').filter(|(_, rest)| rest.contains(['.', ',']))?,
    };
    let is_whole = !minutes.is_empty() && minutes.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = number(seconds, decimal).filter(|seconds| (0.0..60.0).contains(seconds))?;
    Some(minutes.parse::<f64>().ok().filter(|_| is_whole)? * 60.0 + seconds)
}

/// A day with a year of four digits, or a time of day with seconds; perhaps with more behind.
fn is_date(text: &str) -> bool {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let first = digits(text);
    let Some(mark) = text[first..].chars().next().filter(|mark| "-/:.".contains(*mark)) else {
        return false;
    };
    let rest = &text[first + 1..];
    let second = digits(rest);
    let Some(rest) = rest[second..].strip_prefix(mark) else { return false };
    let third = digits(rest);
    let is_short = |len| (1..=2).contains(&len);
    is_short(second)
        && match (mark, first, third) {
            (':', first, third) => is_short(first) && is_short(third),
            (_, 4, third) => is_short(third),
            (_, first, 4) => is_short(first),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::Decimal::{Comma, Point};
    use super::{Cell, decimal, number};

    #[test]
    fn numbers_are_read_by_their_decimal_mark_and_groups_have_three_digits() {
        for (text, point, comma) in [
            ("12", Some(12.0), Some(12.0)),
            ("-1.5", Some(-1.5), None),
            (".5", Some(0.5), None),
            ("100,25", None, Some(100.25)),
            ("1,234", Some(1234.0), Some(1.234)),
            ("1,234.5", Some(1234.5), None),
            ("1.234,5", None, Some(1234.5)),
            ("1 234 567", Some(1234567.0), Some(1234567.0)),
            ("1e-3", Some(1e-3), Some(1e-3)),
            ("1.2.3", None, None),
            ("", None, None),
            ("12-3", None, None),
        ] {
            assert_eq!((number(text, Point), number(text, Comma)), (point, comma), "{text}");
        }
    }

    #[test]
    fn cells_have_units_or_are_missing_or_are_dates() {
        let found = |text| match Cell::new(text, Point) {
            Cell::Number { value, unit } => format!("{value} {unit}").trim_end().to_owned(),
            other => format!("{other:?}"),
        };
        for (text, wanted) in [
            ("101.5 ms", "0.1015 seconds"),
            ("1,500us", "0.0015 seconds"),
            ("20.3%", "20.3 percent"),
            ("4KiB", "4096 bytes"),
            ("1.5e3 ops/s", "1500 ops/s"),
            ("12k", "12000"),
            ("2e400", "Missing"),
            ("0m1.25s", "1.25 seconds"),
            ("1:02.5", "62.5 seconds"),
            ("N/A", "Missing"),
            ("-", "Missing"),
            ("2026-11-30 10:00:00", "Date"),
            ("10:00:05", "Date"),
            ("30.11.2026", "Date"),
            ("10.0.0.1", "Text"),
            ("1.2.3", "Text"),
            ("3ab4", "Text"),
            ("worker-1", "Text"),
        ] {
            assert_eq!(found(text), wanted, "{text}");
        }
    }
    #[test]
    fn the_decimal_mark_is_that_of_the_cells_with_one_meaning() {
        let find = |cells: &[&'static str]| decimal(cells.iter().copied());
        assert_eq!(find(&["1", "2.5", "a,b"]), Ok(Point));
        assert_eq!(find(&["1.234", "2,5 GHz, eight cores"]), Ok(Point));
        assert_eq!(find(&["1.234", "5.678"]), Ok(Point));
        assert_eq!(find(&["1,234", "2,5"]), Ok(Comma));
        assert_eq!(find(&["1.234", "2,5"]), Ok(Comma));
        assert_eq!(find(&["1,234", "2.5"]), Ok(Point));
        assert_eq!(find(&["1,234 us", "5,678 us"]), Err("1,234 us"));
    }
}

//! JSON of the tools, recognized by its fields.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::collect::unnamed;
use super::{
    Benchmark, asv, bencher, benchmark_dotnet, criterion, fio, github_action, go_test,
    google_benchmark, hyperfine, jmh, k6, perf_stat, prometheus, pyperf, pytest_benchmark,
    recording, sadf, unknown, vegeta,
};
use crate::{Error, Result};

type IsKind = fn(&Value) -> bool;
type Reader = fn(&Value, &str) -> Result<Vec<Benchmark>>;
type LinesReader = fn(&str, &str) -> Result<Vec<Benchmark>>;

/// Files of JSON Lines, by their first line.
const LINES: [(IsKind, LinesReader); 5] = [
    (recording::is_start, |text, name| Ok(unnamed(vec![recording::parse(text, name)?]))),
    (perf_stat::is_count, perf_stat::parse),
    (go_test::is_event, go_test::parse),
    (k6::is_line, k6::points),
    (vegeta::is_line, vegeta::requests),
];

/// Files of one value; the first that fits counts.
const WHOLE: [(IsKind, Reader); 16] = [
    (sadf::is_report, sadf::parse),
    (asv::is_results, asv::parse),
    (hyperfine::is_export, hyperfine::parse),
    (pytest_benchmark::is_report, pytest_benchmark::parse),
    (google_benchmark::is_report, google_benchmark::parse),
    (pyperf::is_suite, pyperf::parse),
    (benchmark_dotnet::is_report, benchmark_dotnet::parse),
    (prometheus::is_response, prometheus::parse),
    (fio::is_report, fio::parse),
    (k6::is_summary, k6::summary),
    (vegeta::is_report, vegeta::report),
    (criterion::is_sample, criterion::sample),
    (criterion::is_estimates, criterion::estimates),
    (jmh::is_results, jmh::parse),
    (github_action::is_list, github_action::parse),
    (bencher::is_metrics, bencher::parse),
];

/// True for a text that can only be JSON.
pub(super) fn is_json(first_line: &str) -> bool {
    first_line.trim_start().starts_with(['{', '['])
}

pub(super) fn parse(text: &str, first_line: &str, name: &str) -> Result<Vec<Benchmark>> {
    let first: Option<Value> = from_json(first_line).ok();
    let reader = first.as_ref().and_then(|first| LINES.iter().find(|(is_kind, _)| is_kind(first)));
    let all = match reader {
        Some((_, reader)) => reader(text, name)?,
        None => whole(text, first.is_some(), name)?,
    };
    match all.is_empty() {
        true => Err(Error::corrupt("it has no benchmark")),
        false => Ok(all),
    }
}

fn whole(text: &str, is_lines: bool, name: &str) -> Result<Vec<Benchmark>> {
    let whole: Value = match from_json(text) {
        Ok(whole) => whole,
        Err(_) if is_lines => return Err(unknown("its JSON Lines are of another kind")),
        Err(error) if text.contains("\"sysstat\"") => {
            return Err(Error::corrupt(format!(
                "it begins as JSON of sysstat and is none: {error}; sysstat before 12.x is known to leave out \
                 commas and braces, and other locales write decimal commas: take `sadf -d`, or \
                 `LC_ALL=C sadf -j` of a newer one"
            )));
        }
        Err(error) => {
            return Err(Error::corrupt(format!("it begins as JSON and is none: {error}")));
        }
    };
    match WHOLE.iter().find(|(is_kind, _)| is_kind(&whole)) {
        Some((_, reader)) => reader(&whole, name),
        None => Err(unknown("its JSON is of another kind")),
    }
}

/// Reads JSON in which `NaN`, infinities, and numbers beyond the range of a double are missing values.
pub(super) fn from_json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text).or_else(|error| match without_words(text) {
        Cow::Borrowed(_) => Err(error),
        Cow::Owned(text) => serde_json::from_str(&text),
    })
}

/// The text with `null` for each number that JSON has no form for, outside of strings.
fn without_words(text: &str) -> Cow<'_, str> {
    let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-._".contains(byte);
    let bytes = text.as_bytes();
    let (mut at, mut copied, mut changed) = (0, 0, String::new());
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_string(bytes, at),
            byte if is_of_word(&byte) => {
                let length = bytes[at..].iter().take_while(|byte| is_of_word(byte)).count();
                let value: Option<f64> = text[at..at + length].parse().ok();
                if value.is_some_and(|value| !value.is_finite()) {
                    changed += &text[copied..at];
                    changed += "null";
                    copied = at + length;
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    match copied {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(changed + &text[copied..]),
    }
}

/// The place behind the string that begins at `start`.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::from_json;

    #[test]
    fn words_for_numbers_are_missing_values_and_strings_stay() {
        let text = r#"{"a": [NaN, -Infinity,Infinity, 1e999, -nan, 2.5], "NaN": "say \"NaN, 1e999", "c": NaN}"#;
        let value: Value = from_json(text).unwrap();
        let expected =
            json!({"a": [null, null, null, null, null, 2.5], "NaN": "say \"NaN, 1e999", "c": null});
        assert_eq!(value, expected);
        for text in ["{\"a\": NaNa}", "NaN\"", "[NaN, \"\\", "{NaN", "[infinite]"] {
            assert!(from_json::<Value>(text).is_err(), "{text}");
        }
    }
}

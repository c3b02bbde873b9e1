//! `perf stat -x,`: lines of the fields that `perf stat -j` names.

use super::Benchmark;
use super::perf_stat::{Count, runs};
use super::units::number;
use crate::Result;

/// Separators that do not occur in the names of events.
const SEPARATORS: [char; 4] = [';', '\t', '|', ','];

/// The separator of a text whose first line is a count.
pub(super) fn separator(text: &str) -> Option<char> {
    let is_count = |line: &&str| !line.starts_with('#') && !line.trim().is_empty();
    let first = text.lines().find(is_count)?;
    SEPARATORS.into_iter().find(|separator| count(first, *separator).is_some())
}

pub(super) fn parse(text: &str, separator: char, name: &str) -> Result<Vec<Benchmark>> {
    runs(text, name, |line| {
        count(line, separator).ok_or("it is no count of an event, as the lines above it are")
    })
}

/// Reads the end of the interval with `-I`, the place with `-A` or `--per-…`, the count, the unit, the event, the
/// variance with `-r`, the time in which it was counted, and its share in percent.
fn count(line: &str, separator: char) -> Option<Count> {
    let fields: Vec<&str> = line.split(separator).map(str::trim).collect();
    let is_count = |field: &str| number(field).is_some() || field.starts_with("<not ");
    let is_word = |field: &str| field.starts_with(|first: char| first.is_ascii_alphabetic());
    // The count is the first to the fourth field: an interval, a place and its number of processors may come before.
    (2..fields.len().min(6)).find_map(|index| {
        let (event, behind) = event(&fields[index..], separator)?;
        let (value, unit) = (fields[index - 2], fields[index - 1]);
        let mut behind = behind.iter().filter(|field| !field.ends_with('%'));
        let (run_time, percent) = (behind.next()?, number(behind.next()?)?);
        let is_valid = is_count(value)
            && (unit.is_empty() || !is_count(unit))
            && is_word(&event)
            && run_time.parse::<u64>().is_ok()
            && (0.0..=100.0).contains(&percent);
        let in_front = &fields[..index - 2];
        let place = in_front.iter().find(|field| is_word(field)).map(|place| place.to_lowercase());
        let end = in_front.first().filter(|field| !is_word(field));
        is_valid.then_some(Count {
            name: Count::name(&event, unit, place.as_deref()),
            end: end.and_then(|end| number(end)),
            value: number(value),
        })
    })
}

/// The event, and the fields behind it. An event such as `cpu/event=0x3c,umask=0x0/` has the separator in it.
fn event<'a>(fields: &'a [&'a str], separator: char) -> Option<(String, &'a [&'a str])> {
    let slashes = |field: &str| field.matches('/').count();
    let first = fields.first()?;
    let mut length = 1;
    if slashes(first) % 2 == 1 {
        length += fields[1..].iter().position(|field| slashes(field) % 2 == 1)? + 1;
    }
    Some((fields[..length].join(&separator.to_string()), &fields[length..]))
}

//! Explains where the time of runs went, and by which counters.

use cowslip_compare::{Cause, Certainty, PartOfTime, TimePart, TimeSplit};

use super::format;
use super::words::{called, counters, listed};

/// The parts together are more than the difference by more than this share of it: threads ran at once.
const BEYOND: f64 = 0.15;

/// Describes where the time went, and the counters that explain it.
pub(super) fn explanation(split: &TimeSplit, causes: &[Cause], alpha: f64) -> String {
    let added = split.added();
    let parts = split.carriers();
    let phrase: Vec<String> = parts
        .iter()
        .map(|part| {
            // Waiting for a processor after more wake-ups may exceed the part itself.
            let is_shown = part.added().signum() == added.signum();
            let seconds = if is_shown { part.added() } else { part.carried };
            let sign = if seconds > 0.0 { "+" } else { "-" };
            let perhaps = if part.differs(alpha) { "" } else { "perhaps " };
            format!("{perhaps}{} ({sign}{})", reason(split, part), format::seconds(seconds.abs()))
        })
        .collect();
    let verb = if added > 0.0 { "went to" } else { "was saved in" };
    let went = format!("the time {verb} {}", listed(&phrase));
    let shown: f64 = parts.iter().map(|part| part.added() / added).sum();
    let carried: f64 = parts.iter().map(|part| part.carried / added).sum();
    let of = match () {
        () if shown > 1.0 + BEYOND => ", of all threads together",
        () if carried - shown >= BEYOND => {
            ", with such waiting for a processor as good runs have, too"
        }
        () => "",
    };
    let more = if added > 0.0 { "more" } else { "less" };
    let is_user = parts.first().is_some_and(|part| part.part == TimePart::User);
    let why = match causes {
        [] if is_user => {
            format!("no counter of the kernel explains it: the program itself computes {more}")
        }
        [] => "no counter of the kernel explains it".to_owned(),
        [Cause { certainty: Certainty::Little, seconds, .. }, ..] => {
            let seconds = format::seconds(seconds.abs());
            let rest = match is_user {
                true => format!(": the program itself computes {more}"),
                false => String::new(),
            };
            format!("{}, which is about {seconds} of it{rest}", counters(&causes[..1]))
        }
        _ => format!("as {}", counters(causes)),
    };
    format!("{went}{of}; {why}")
}

/// A part in words; the remainder is a change of the threads that run at once, or waits for locks, where that is the
/// greater share of it.
fn reason(split: &TimeSplit, part: &PartOfTime) -> &'static str {
    let added = |wanted: TimePart| {
        let entry = split.ledger.iter().find(|entry| entry.part == wanted);
        entry.map_or(0.0, |entry| entry.added.value)
    };
    let overlap = added(TimePart::Overlap);
    // Idle threads wait as long as a run takes.
    let beside = split
        .lock_wait
        .as_ref()
        .map_or(0.0, |wait| wait.means.1 - wait.means.0 * split.means.1 / split.means.0);
    match part.part {
        TimePart::Asleep if overlap / part.with_waits() > 0.5 => match overlap > 0.0 {
            true => "fewer threads at once",
            false => "more threads at once",
        },
        TimePart::Asleep if (added(TimePart::LockWait) + beside) / part.with_waits() > 0.5 => {
            called(TimePart::LockWait)
        }
        part => called(part),
    }
}

//! Explains where the time of runs went, and by which counters.

use cowslip_compare::{Comparison, PartOfTime, Row, TimePart, TimeSplit, Verdict};

use super::causes::{self, Cause, MOST};
use super::format::{self, is_relevant};
use super::words::{called, change, listed};

/// A part of the time is named if it carries at least this share of the added time: at least one of five parts does.
const LEAST_PART: f64 = 0.15;
/// Describes where the time went, and the counters that explain it.
pub(super) fn explanation(
    comparison: &Comparison,
    split: &TimeSplit,
    alpha: f64,
    effect: f64,
) -> String {
    let added = split.means.1 - split.means.0;
    let mut parts: Vec<_> =
        split.parts.iter().filter(|part| part.carried / added >= LEAST_PART).collect();
    // Running more makes threads of the program wait for each other, so waiting is named after running, unless there is
    // far more of it than running explains.
    let is_running =
        |part: TimePart| matches!(part, TimePart::User | TimePart::System | TimePart::Running);
    let is_wait = |part: TimePart| part == TimePart::ProcessorWait;
    let carried_by = |is_it: &dyn Fn(TimePart) -> bool| -> f64 {
        parts.iter().filter(|part| is_it(part.part)).map(|part| part.carried / added).sum()
    };
    let running = carried_by(&is_running);
    let runs_more = running >= 0.5 && carried_by(&is_wait) <= 2.0 * running;
    let is_later = |part: TimePart| runs_more && !is_running(part);
    parts.sort_by(|a, b| {
        let order = is_later(a.part).cmp(&is_later(b.part));
        order.then((b.carried / added).total_cmp(&(a.carried / added)))
    });
    let which: Vec<TimePart> = parts.iter().map(|part| part.part).collect();
    let causes = causes::causes(comparison, split, &which, effect);
    let phrase: Vec<String> = parts
        .iter()
        .map(|part| {
            // Waiting for a processor after more wake-ups may exceed the part itself.
            let is_shown = part.added().signum() == added.signum();
            let seconds = if is_shown { part.added() } else { part.carried };
            let sign = if seconds > 0.0 { "+" } else { "-" };
            let perhaps = if part.differs(alpha) { "" } else { "perhaps " };
            let seconds = format::seconds(seconds.abs());
            format!("{perhaps}{} ({sign}{seconds})", reason(split, part))
        })
        .collect();
    let verb = if added > 0.0 { "went to" } else { "was saved in" };
    let went = format!("the time {verb} {}", listed(&phrase));
    let shown: f64 = parts.iter().map(|part| part.added() / added).sum();
    let carried: f64 = parts.iter().map(|part| part.carried / added).sum();
    let of = match () {
        () if shown > 1.0 + LEAST_PART => ", of all threads together",
        () if carried - shown >= LEAST_PART => {
            ", with such waiting for a processor as good runs have, too"
        }
        () => "",
    };
    let why = match (which.first(), causes.is_empty()) {
        (_, false) => format!("as {}", counters(comparison, &causes, effect)),
        (Some(TimePart::User), true) => {
            "no counter of the kernel explains it: the program itself computes".to_owned()
                + if added > 0.0 { " more" } else { " less" }
        }
        (_, true) => "no counter of the kernel explains it".to_owned(),
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
        TimePart::Asleep if overlap / causes::size(part) > 0.5 => match overlap > 0.0 {
            true => "fewer threads at once",
            false => "more threads at once",
        },
        TimePart::Asleep if (added(TimePart::LockWait) + beside) / causes::size(part) > 0.5 => {
            called(TimePart::LockWait)
        }
        part => called(part),
    }
}

fn counters(comparison: &Comparison, causes: &[Cause<'_>], effect: f64) -> String {
    let mut rows: Vec<&Row> = causes.iter().take(MOST).map(|cause| cause.row).collect();
    // Base pages in place of huge ones are the same faults, not a further cause.
    if rows.iter().any(|row| row.metric == "rusage.minor_faults") {
        let rose = rows[0].means.1 > rows[0].means.0;
        let huge = comparison.rows.iter().find(|row| {
            row.metric.trim_end_matches("/s") == "vmstat.thp_fault_alloc"
                && row.verdict != Verdict::Unproven
                && is_relevant(row, effect)
                && (row.means.1 > row.means.0) != rose
        });
        rows.truncate(if huge.is_some() { 1 } else { MOST });
        rows.extend(huge);
    }
    let all = rows.iter().map(|row| {
        let perhaps = if row.verdict == Verdict::Perhaps { "perhaps " } else { "" };
        perhaps.to_owned() + &change(row)
    });
    listed(&all.collect::<Vec<_>>())
}

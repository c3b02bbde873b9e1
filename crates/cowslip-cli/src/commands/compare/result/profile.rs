//! The processor time by function, in a sentence and as a table.

use cowslip_compare::profile::{ProfileDifference, ProfileRow};
use cowslip_report::text::printable;

use super::format;
use super::ledger::{Cells, Unit};

/// A sentence names no more callers.
const CALLERS: usize = 2;
/// The part of the difference that a thread has which is named.
const MOST_OF_IT: f64 = 0.6;
/// The part of the good runs' time with which a thread is the program's main one.
const MAIN: f64 = 0.5;
/// Longer names are cut: templates of C++ have hundreds of characters.
const LONGEST: usize = 80;

/// The function and the thread in which the difference arose; `None` if there is none that has most of it.
pub(super) fn sentence(found: &ProfileDifference) -> Option<String> {
    if !found.all.added.is_certain() {
        return None;
    }
    let thread = thread(found)
        .map(|row| format!("in thread `{}` ({})", short(&row.name), signed(row.added.value)));
    let function = function(found);
    let all: Vec<String> = function.into_iter().chain(thread).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The thread that grew, unless it is the one that works most anyway. One with another name may be the same.
fn thread(found: &ProfileDifference) -> Option<&ProfileRow> {
    let explains = |row: &&ProfileRow| {
        row.added.is_certain()
            && row.added.value / found.all.added.value >= MOST_OF_IT
            && row.means.0 > 0.0
            && row.means.0 < MAIN * found.all.means.0
    };
    found.threads.iter().find(explains)
}

fn function(found: &ProfileDifference) -> Option<String> {
    let explained = found.explained.as_ref().filter(|row| row.added.is_certain())?;
    let names = found.path.iter().take(1 + CALLERS).map(|name| format!("`{}`", short(name)));
    let names: Vec<String> = names.collect();
    let (part, all) = (explained.added.value, found.all.added.value);
    Some(format!(
        "in {} ({} of {} of sampled processor time)",
        names.join(" < "),
        signed(part),
        signed(all)
    ))
}

fn signed(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "+" };
    format!("{sign}{}", format::seconds(seconds.abs()))
}

/// Rows, the head first: functions by themselves, the rest, and threads.
pub(super) fn rows(found: &ProfileDifference, alpha: f64) -> Vec<Cells> {
    let unit = Unit::new(found.all.means.0.max(found.all.means.1));
    let head =
        format!("{} a run, sampled in {} and {} more", unit.name, found.runs.0, found.runs.1);
    let interval = format!("{} % interval", format::level(alpha));
    let heads = ["good", "bad", "difference"].map(str::to_owned);
    let [good, bad, difference] = heads;
    let mut rows = vec![[head, good, bad, difference, interval]];
    let cells = |indent: &str, row: &ProfileRow| {
        unit.cells(&format!("{indent}{}", short(&row.name)), row.means, &row.added)
    };
    rows.extend(found.functions.iter().map(|row| cells("", row)));
    rows.push(unit.cells("processor time", found.all.means, &found.all.added));
    rows.extend(found.threads.iter().map(|row| cells("  thread ", row)));
    rows
}

fn short(name: &str) -> String {
    let name = printable(name);
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    }
}

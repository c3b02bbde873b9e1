//! Delivers the findings of a comparison as the options say: a table, JSON, a page.

mod calls;
mod cause;
mod explanation;
mod flame;
pub(in crate::commands::compare) mod format;
mod ledger;
mod modes;
mod page;
mod profile;
mod settings;
mod strip_plot;
mod table;
pub(in crate::commands::compare) mod words;

use std::path::Path;
use std::process::ExitCode;

use cowslip_compare::calls::CallDifference;
use cowslip_compare::inputs::{self, Run, Where};
use cowslip_compare::profile::ProfileDifference;
use cowslip_compare::{Cause, Comparison, ErrorKind, Row, TimeSplit, Verdict, compare};
use cowslip_report::{json, sink};
use cowslip_sys::exit_code;
use serde_json::json;

use crate::exit::{self, CORRUPT, CommandResult, Failure, NO, USAGE};
pub(in crate::commands::compare) use settings::{FailOn, Settings, share};

/// The runs of a file or of a folder.
pub(super) fn read(path: &Path, wanted: &[Where]) -> Result<Vec<Run>, Failure> {
    inputs::read_where(path, wanted).map_err(trouble)
}

/// The reasons that runs beside those that are compared show.
#[derive(Default)]
pub(super) struct Found {
    pub(super) profile: Option<ProfileDifference>,
    pub(super) calls: Option<CallDifference>,
}

/// The text above and below a comparison's table.
struct Report {
    cause: String,
    /// Sentences about the cause that no counter tells: settings that differ, modes of a side.
    beside: Vec<String>,
    /// The head and the rows of the ledger of time, if it is known.
    ledger: Vec<ledger::Cells>,
    /// The head and the rows of the processor time by function, if it was sampled.
    profile: Vec<ledger::Cells>,
    /// The head and the rows of the system calls that grew, if they were recorded.
    calls: Vec<ledger::Cells>,
    /// Sentences about the primary metric.
    primary: Vec<String>,
    /// One sentence each.
    advice: Vec<String>,
}

/// Compares, and delivers the results as the options say.
pub(super) fn deliver(
    mut good: Vec<Run>,
    mut bad: Vec<Run>,
    found: &Found,
    settings: &Settings,
) -> CommandResult {
    let split = TimeSplit::from_runs(&good, &bad, settings.alpha);
    if let Some(wanted) = &settings.metric {
        let is_wanted = |name: &String| {
            wanted.is_match(name)
                || wanted.is_match(&format!("{name}/s"))
                || settings.primary.as_ref() == Some(name)
        };
        for run in good.iter_mut().chain(&mut bad) {
            run.metrics.retain(|name, _| is_wanted(name));
        }
    }
    let comparison = compare(&good, &bad, &settings.options()).map_err(trouble)?;
    if comparison.rows.is_empty() {
        let is_partial = [&comparison.only_good, &comparison.only_bad, &comparison.too_few]
            .iter()
            .any(|names| !names.is_empty());
        if comparison.constant.is_empty() || is_partial {
            let code = if settings.metric.is_some() { USAGE } else { CORRUPT };
            return Err(Failure::new(code, nothing_in_common(&comparison, settings)));
        }
    }
    let modes = modes::find(&comparison, [&good, &bad], settings);
    let mut beside: Vec<String> = format::settings(&comparison.facts).into_iter().collect();
    beside.extend(modes.iter().map(modes::SideModes::sentence));
    let causes = split.as_ref().map_or_else(Vec::new, |split| {
        Cause::find(&comparison, split, found.calls.as_ref(), settings.relevant())
    });
    let mut cause =
        cause::sentence(&comparison, split.as_ref(), &causes, settings.alpha, settings.relevant());
    let profile = found.profile.as_ref();
    if let Some(function) = profile.and_then(profile::sentence) {
        cause += &format!("; {function}");
    }
    let report = Report {
        cause,
        profile: profile.map_or_else(Vec::new, |found| profile::rows(found, settings.alpha)),
        calls: found.calls.as_ref().map_or_else(Vec::new, calls::rows),
        ledger: split.as_ref().map_or_else(Vec::new, |split| ledger::rows(split, settings.alpha)),
        beside,
        primary: format::certainty(&comparison, settings.alpha),
        advice: format::advice(&comparison, split.as_ref(), settings),
    };
    let fails = fails(&comparison, settings);
    if settings.json.as_deref() != Some(Path::new("-")) {
        sink::print(&table::render(&comparison, &report, settings))
            .map_err(exit::io("print the results"))?;
    }
    if let Some(path) = &settings.json {
        let value = json!({
            "schema": "cowslip.compare/1",
            "alpha": settings.alpha,
            "fdr": settings.fdr,
            "wanted_change": settings.relevant(),
            "differs": comparison.differs(),
            "fails": fails,
            "cause": report.cause,
            "causes": causes,
            "time": split,
            "profile": profile,
            "calls": found.calls,
            "modes": modes,
            "comparison": comparison,
        });
        json::write(&value, path).map_err(exit::io("write the results"))?;
    }
    if let Some(path) = &settings.html {
        page::write(&comparison, &report, profile, settings, path)
            .map_err(exit::io("write the page"))?;
    }
    Ok(if fails { ExitCode::from(NO) } else { ExitCode::SUCCESS })
}

/// Returns true if the primary metric differs by enough to matter, in the requested direction; without a primary
/// metric, if any does.
fn fails(comparison: &Comparison, settings: &Settings) -> bool {
    let is_failure = |row: &Row| {
        let is_direction = match settings.fail_on {
            Some(FailOn::Any) => true,
            Some(FailOn::Slower) => row.means.1 > row.means.0,
            Some(FailOn::Faster) => row.means.1 < row.means.0,
            // For other metrics than the primary one, the bad direction is not known.
            None => comparison.primary.is_none() || row.means.1 > row.means.0,
        };
        row.verdict == Verdict::Differs && row.matters(settings.relevant()) && is_direction
    };
    match &comparison.primary {
        Some(_) => comparison.primary_row().is_some_and(is_failure),
        None => comparison.rows.iter().any(is_failure),
    }
}

fn nothing_in_common(comparison: &Comparison, settings: &Settings) -> String {
    let of = if settings.metric.is_some() { " that --metric lets through" } else { "" };
    let mut all = vec![format!("no metric{of} has two values on both sides that differ anywhere")];
    for (names, place) in [
        (&comparison.only_good, "only in good runs"),
        (&comparison.only_bad, "only in bad runs"),
        (&comparison.too_few, "with too few values"),
        (&comparison.constant, "the same everywhere"),
    ] {
        const MOST: usize = 5;
        if !names.is_empty() {
            let more = names.len().saturating_sub(MOST);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            all.push(format!("{place}: {}{more}", names[..names.len().min(MOST)].join(", ")));
        }
    }
    all.extend(comparison.notes.iter().filter(|note| note.starts_with("left out")).cloned());
    all.join("; ")
}

pub(in crate::commands::compare) fn trouble(error: cowslip_compare::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::Corrupt => CORRUPT,
        ErrorKind::Io(kind) => exit_code::of_file(&kind.into()),
        _ => USAGE,
    };
    Failure::new(code, error)
}

//! `cowslip compare history`: the changes of a series.

mod args;
mod chart;
mod junit;
mod page;
mod sentences;
mod text;

use std::path::Path;
use std::process::ExitCode;

use cowslip_compare::history::{Change, History, Store, analyse};
use cowslip_report::{Progress, json, sink};
use serde_json::json;

use super::result::{FailOn, trouble};
use crate::exit::{self, CommandResult, NO};
pub(super) use args::HistoryArgs;

/// A series, and the verdict on its newest entries.
struct Found {
    history: History,
    /// True if they hold a change for the worse that matters.
    fails: bool,
}

pub(super) fn history(args: &HistoryArgs) -> CommandResult {
    let all = Store::new(&args.from).read(&args.name).map_err(trouble)?;
    let mut progress = Progress::brief();
    progress.phase("looking for changes");
    let mut found = Vec::new();
    for (done, series) in all.iter().enumerate() {
        progress.set(done as u64, all.len() as u64);
        let history = analyse(series, &args.settings()).map_err(trouble)?;
        // The machine of the newest entry decides.
        let group = history.groups.first();
        let newest = group.and_then(|group| group.newest.as_ref());
        let drift = group.and_then(|group| group.drift);
        let fails = newest.is_some_and(|change| is_worse(change, args))
            || drift.is_some_and(|drift| is_bad(drift.means, args));
        found.push(Found { history, fails });
    }
    progress.finish();
    deliver(&found, args)?;
    let fails = found.iter().any(|series| series.fails);
    Ok(if fails { ExitCode::from(NO) } else { ExitCode::SUCCESS })
}

/// Returns true if the bad direction leads from the first value to the second.
fn is_bad((before, after): (f64, f64), args: &HistoryArgs) -> bool {
    match args.fail_on {
        FailOn::Any => true,
        FailOn::Slower => after > before,
        FailOn::Faster => after < before,
    }
}

/// Returns true for a change in the bad direction, by enough to matter.
fn is_worse(change: &Change, args: &HistoryArgs) -> bool {
    // A change from zero is unbounded.
    is_bad(change.means, args)
        && change.change.is_none_or(|estimate| estimate.value.abs() >= args.effect / 100.0)
}

fn deliver(found: &[Found], args: &HistoryArgs) -> Result<(), exit::Failure> {
    let is_stdout = |path: &Option<_>| path.as_deref() == Some(Path::new("-"));
    if ![&args.json, &args.html, &args.junit].into_iter().any(is_stdout) {
        sink::print(&text::render(found, args)).map_err(exit::io("print the results"))?;
    }
    if let Some(path) = &args.json {
        let series: Vec<_> = found
            .iter()
            .map(|series| json!({ "fails": series.fails, "history": series.history }))
            .collect();
        let value = json!({
            "schema": "cowslip.compare.history/1",
            "alpha": args.alpha,
            "effect": args.effect / 100.0,
            "newest": args.newest,
            "fails": found.iter().any(|series| series.fails),
            "series": series,
        });
        json::write(&value, path).map_err(exit::io("write the results"))?;
    }
    if let Some(path) = &args.html {
        page::write(found, args, path).map_err(exit::io("write the page"))?;
    }
    if let Some(path) = &args.junit {
        junit::write(found, args, path).map_err(exit::io("write the JUnit file"))?;
    }
    Ok(())
}

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
        let newest = history.groups.first().and_then(|group| group.newest.as_ref());
        let fails = newest.is_some_and(|change| is_worse(change, args));
        found.push(Found { history, fails });
    }
    progress.finish();
    deliver(&found, args)?;
    let fails = found.iter().any(|series| series.fails);
    Ok(if fails { ExitCode::from(NO) } else { ExitCode::SUCCESS })
}

/// Returns true for a change in the bad direction, by enough to matter.
fn is_worse(change: &Change, args: &HistoryArgs) -> bool {
    let (before, after) = change.means;
    let is_direction = match args.fail_on {
        FailOn::Any => true,
        FailOn::Slower => after > before,
        FailOn::Faster => after < before,
    };
    // A change from zero is unbounded.
    is_direction && change.change.is_none_or(|estimate| estimate.value.abs() >= args.effect / 100.0)
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

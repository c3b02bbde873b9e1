//! What a comparison finds, where the options say: a table, JSON, a page.

mod cause;
mod format;
mod how;
mod page;
mod strip_plot;
mod table;

use std::path::Path;
use std::process::ExitCode;

use cowslip_compare::inputs::{self, Run};
use cowslip_compare::{Comparison, ErrorKind, compare};
use cowslip_report::{json, sink};
use serde_json::json;

use crate::exit::{self, CORRUPT, CommandResult, DENIED, Failure, NO, USAGE};
pub(in crate::commands::compare) use how::How;

/// The runs of a file or of a folder.
pub(super) fn read(path: &Path) -> Result<Vec<Run>, Failure> {
    inputs::read(path).map_err(trouble)
}

/// Compares, and sends what came of it where the options say.
pub(super) fn deliver(mut good: Vec<Run>, mut bad: Vec<Run>, how: &How) -> CommandResult {
    if let Some(wanted) = &how.metric {
        for run in good.iter_mut().chain(&mut bad) {
            run.metrics
                .retain(|name, _| wanted.is_match(name) || wanted.is_match(&format!("{name}/s")));
        }
    }
    let comparison = compare(&good, &bad, &how.options()).map_err(trouble)?;
    if comparison.rows.is_empty() && comparison.constant.is_empty() {
        return Err(Failure::new(USAGE, nothing_in_common(&comparison, how)));
    }
    if how.output.json.as_deref() != Some(Path::new("-")) {
        sink::print(&table::render(&comparison, how)).map_err(exit::io("print the results"))?;
    }
    if let Some(path) = &how.output.json {
        let value = json!({
            "schema": "cowslip.compare/1",
            "alpha": how.alpha,
            "fdr": how.fdr,
            "wanted_change": how.relevant(),
            "differs": comparison.differs(),
            "cause": cause::sentence(&comparison, how.relevant()),
            "comparison": comparison,
        });
        json::write(&value, path).map_err(exit::io("write the results"))?;
    }
    if let Some(path) = &how.output.html {
        page::write(&comparison, how, path).map_err(exit::io("write the page"))?;
    }
    Ok(if comparison.differs() { ExitCode::from(NO) } else { ExitCode::SUCCESS })
}

fn nothing_in_common(comparison: &Comparison, how: &How) -> String {
    let (good, bad, few) =
        (comparison.only_good.len(), comparison.only_bad.len(), comparison.too_few.len());
    let of = if how.metric.is_some() { " that --metric lets through" } else { "" };
    format!(
        "no metric{of} has two values on both sides: {good} are only in good runs, {bad} only in bad ones, {few} \
         have too few values"
    )
}

/// That something went wrong must not look as if they differed.
fn trouble(error: cowslip_compare::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::Corrupt => CORRUPT,
        ErrorKind::Io(std::io::ErrorKind::PermissionDenied) => DENIED,
        _ => USAGE,
    };
    Failure::new(code, error)
}

//! What the command prints: one report, shown as a table, as JSON or as one HTML page.

mod charts;
mod groups;
mod machine;
mod svg;

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod latency;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod sink;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod units;

#[cfg(test)]
mod example;

use std::path::Path;

use crate::args::OutputArgs;
use crate::exit::{self, Failure};

/// Sends a report where its options say: the table, unless JSON goes to stdout, and the files.
pub(crate) fn deliver(report: &report::Report, to: &OutputArgs) -> Result<(), Failure> {
    if to.json.as_deref() != Some(Path::new("-")) {
        table::print(report).map_err(exit::io("print the results"))?;
    }
    if let Some(path) = &to.json {
        json::write(report, path).map_err(exit::io("write the results"))?;
    }
    if let Some(path) = &to.html {
        html::write(report, path).map_err(exit::io("write the page"))?;
    }
    Ok(())
}

//! The destinations of the report of a bench.

use std::path::{Path, PathBuf};

use cowslip_bench::report::{Report, html, table};
use cowslip_report::json;

use super::failure::{self, Failure};

/// Where results go besides the table
#[derive(clap::Args, Debug)]
pub(crate) struct OutputArgs {
    /// Write JSON to a file, or `-` for stdout (then no table)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write one self-contained page with charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// Delivers the report: the table, unless JSON goes to standard output, and the files.
pub(crate) fn deliver(report: &Report, to: &OutputArgs) -> Result<(), Failure> {
    if to.json.as_deref() != Some(Path::new("-")) {
        table::print(report).map_err(failure::io("print the results"))?;
    }
    if let Some(path) = &to.json {
        json::write(report, path).map_err(failure::io("write the results"))?;
    }
    if let Some(path) = &to.html {
        html::write(report, path).map_err(failure::io("write the page"))?;
    }
    Ok(())
}

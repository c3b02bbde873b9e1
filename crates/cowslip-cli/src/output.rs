//! Sends the report of a bench or of the demo where its options say.

use std::path::Path;

use cowslip_report::{Report, html, json, table};

use crate::args::OutputArgs;
use crate::exit::{self, Failure};

/// The table, unless JSON goes to standard output, and the files.
pub(crate) fn deliver(report: &Report, to: &OutputArgs) -> Result<(), Failure> {
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

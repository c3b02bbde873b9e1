//! `cowslip doctor`: the uses that work here, and the commands that enable the others.

mod args;
mod document;
mod probes;
mod summary;
mod uses;

use std::path::Path;
use std::process::ExitCode;

use cowslip::host::{self, Standing};
use cowslip_report::{Paint, json, sink};
use cowslip_sys::capabilities::{self, CapabilitySet};
use cowslip_trace::record;

use crate::exit::{self, CommandResult, DENIED, NO, UNSUPPORTED};
pub(super) use args::Args;
use uses::{Findings, uses};

pub(super) fn run(args: Args) -> CommandResult {
    let findings = look();
    let uses = uses(&findings);
    if let Some(file) = &args.json {
        let document = document::document(&findings.report, &uses);
        json::write(&document, file).map_err(exit::io("write the report"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        let paint = Paint::of_stdout();
        let mut text = summary::summary(&findings.report, &uses, paint);
        if args.verbose {
            text += &format!("\n{}", probes::table(&findings.report, paint));
            text +=
                &format!("\n{}", crate::commands::trace::permissions_table(&findings.permissions));
        }
        sink::print(&text).map_err(exit::io("print the table"))?;
    }
    Ok(ExitCode::from(exit_code(findings.report.standing())))
}

fn look() -> Findings {
    Findings {
        report: host::report(),
        permissions: record::permissions(),
        may_promote: capabilities::effective()
            .is_ok_and(|set| set.contains(CapabilitySet::SYS_NICE)),
        copied: cowslip_process::trial(),
    }
}

fn exit_code(standing: Standing) -> u8 {
    match standing {
        Standing::Full => 0,
        Standing::Partly | Standing::Failed => NO,
        Standing::Unsupported => UNSUPPORTED,
        Standing::Denied => DENIED,
    }
}

//! `cowslip trace permissions`: the view that each privilege gives here, and the command that grants it.

use std::process::ExitCode;

use cowslip_report::sink;
use cowslip_trace::record::{self, Permission, PermissionStatus};

use crate::exit::{self, CommandResult, DENIED, UNSUPPORTED};

pub(super) fn run() -> CommandResult {
    let permissions = record::permissions();
    sink::print(&table(&permissions)).map_err(exit::io("print the permissions"))?;
    // Without the first permission nothing can be traced.
    Ok(match permissions.first().map(|permission| &permission.status) {
        Some(PermissionStatus::Available) => ExitCode::SUCCESS,
        Some(PermissionStatus::Denied { .. }) => DENIED.into(),
        _ => UNSUPPORTED.into(),
    })
}

/// A table of the permissions, each with its status and the command that grants it.
pub(in crate::commands) fn table(permissions: &[Permission]) -> String {
    let mut text = format!("{:15}{:10}gives\n", "source", "here");
    for permission in permissions {
        text += &format!(
            "{:15}{:10}{}\n",
            permission.name,
            permission.status.to_string(),
            permission.gives
        );
        if let Some(advice) = permission.status.advice() {
            text += &format!("{:25}{advice}\n", "");
        }
    }
    text
}
